"""Conversations without a key, against the rule itself written over whole prompts, and within their limits."""

from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched

from warmroute.contract.conversations import MAX_ALIKE, Asked, Conversation, Conversations, Newest

Message = tuple[str, str]  # role and text
Prompt = tuple[Message, ...]

texts = st.sampled_from(["a", "b", "a b", "a b c", "ab"])
messages: st.SearchStrategy[Message] = st.tuples(st.sampled_from(["user", "user", "assistant", "tool"]), texts)
tenants = st.sampled_from(["t", "u"])


def said(conversations: Conversations, tenant: str, prompt: Prompt) -> Conversation:
    """What the proxy makes of a prompt: a cut a message."""
    hashes = [hash(prompt[: at + 1]) for at in range(len(prompt))]
    users = {
        at: Asked(at, hash(prompt[:at]), text.encode()) for at, (role, text) in enumerate(prompt) if role == "user"
    }
    returned = [users[at] for at in users if at + 1 < len(prompt) and prompt[at + 1][0] == "assistant"]
    return conversations.of(tenant, hashes, users.get(len(prompt) - 1), returned)


class Rule:
    """Each conversation's newest prompt, those noted last at the end."""

    def __init__(self) -> None:
        self.newest: list[tuple[str, str, Prompt, bool]] = []  # key, tenant, prompt, unanswered

    def keys(self, tenant: str, prompt: Prompt) -> set[str]:
        """The conversations that a prompt may continue; none: it begins one."""
        found: dict[int, set[str]] = {}
        for key, owner, newest, unanswered in self.newest:
            if owner != tenant:
                continue
            whole = prompt[: len(newest)] == newest and (len(prompt) > len(newest) or unanswered)
            if whole or self.shortened(newest, prompt):
                found.setdefault(len(newest), set()).add(key)
        return found[max(found)] if found else set()

    @staticmethod
    def shortened(newest: Prompt, prompt: Prompt) -> bool:
        at = len(newest) - 1
        if prompt[:at] != newest[:at] or len(prompt) <= at + 1 or prompt[at + 1][0] != "assistant":
            return False
        (role, text), (role_now, text_now) = newest[at], prompt[at]
        return role == role_now == "user" and text.startswith(f"{text_now} ")

    def note(self, key: str, tenant: str, prompt: Prompt) -> None:
        self.newest = [each for each in self.newest if each[0] != key]
        self.newest.append((key, tenant, prompt, False))

    def left(self, key: str) -> None:
        self.newest = [(each[0], each[1], each[2], each[3] or each[0] == key) for each in self.newest]


@given(st.lists(st.tuples(tenants, st.integers(0, 5), st.lists(messages, max_size=3), st.booleans()), max_size=25))
@searched(200)
def test_each_prompt_continues_what_the_rule_says(steps: list[tuple[str, int, list[Message], bool]]) -> None:
    conversations, rule = Conversations("x"), Rule()
    prompts: list[Prompt] = [()]
    for tenant, back, more, answered in steps:
        prompt = (*prompts[-min(back, len(prompts) - 1) - 1], *more)
        if not prompt:
            continue
        prompts.append(prompt)
        expected = rule.keys(tenant, prompt)
        known = {key for key, *_ in rule.newest}
        found = said(conversations, tenant, prompt)
        assert found.key in expected if expected else found.key not in known
        rule.note(found.key, tenant, prompt)
        if not answered:
            found.left_unanswered(hash(prompt))
            rule.left(found.key)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.binary(max_size=9)), max_size=120))
def test_what_is_kept_is_bounded(noted: list[tuple[int, int, bytes]]) -> None:
    conversations = Conversations("x", max_conversations=20, max_total_bytes=60)
    for number, tip, text in noted:
        conversations.observe(Newest(f"k{number}", "t", tip, tip, text))
        kept = conversations._by_key.values()
        assert len(conversations) <= 20
        assert conversations._bytes == sum(len(each.newest.text) for each in kept) <= 60
        alike = [len(each) for each in conversations._by_tip.values()]
        assert sum(alike) == len(conversations)
        assert max(alike) <= MAX_ALIKE
        assert sum(map(len, conversations._by_stem.values())) == sum(bool(each.newest.text) for each in kept)


def test_a_conversation_that_was_forgotten_begins_anew() -> None:
    conversations = Conversations("x", max_conversations=2)
    first = said(conversations, "t", (("user", "a"),)).key
    for text in ("b", "ab"):
        said(conversations, "t", (("user", text),))
    assert said(conversations, "t", (("user", "a"), ("assistant", "b"), ("user", "a"))).key != first
