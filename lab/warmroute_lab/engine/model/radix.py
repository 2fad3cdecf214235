"""The paged radix cache: which prompt prefixes are resident, which are held, and which are evicted first.

A page is `page_size` tokens. Its key is a hash chained over the pages before it, starting from the salt, so a key
names the whole path from the root: two prompts share a key exactly when they share the salt and everything up to the
end of that page.

The tree is compressed: a `Node` is a run of pages that were always held together. A node is split if two paths diverge
within it, or if only its beginning is needed. A request of hundreds of pages has a few nodes, so every operation on a
request visits a few nodes. Because keys are chained, one map from the first key of each node finds children without a
map in each node, and comparing one key compares everything before it.

A path that a request *holds*, since it runs or waits, is in the tree from its first to its last page. Each page is
*resident* (its KV exists) or a *ghost* (a request will compute it, or waits for it). The resident pages are the
beginning of the path, and a ghost lives only while it is held. So a page that a waiting request shares is protected
from the moment it is computed. A walk up from the end of a held path finds its resident pages.

Eviction drops idle pages (that no request holds), the least recently used leaf first, in O(1) for each node. One rule
makes a search for leaves unnecessary: a path is put into the recency order *deepest node first*. A request that holds a
node holds all its ancestors, so a parent becomes idle together with its child or later, and comes after the child in
the order. The oldest idle node thus never has a child in the cache. If only part of a node is evicted, its end goes.

The caller bounds the number of resident pages: it evicts before it fills (`Scheduler`). Only held paths have ghosts.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence


class Node:
    """A run of pages, of which the first `filled` are resident. `end` is the depth of its last page, from 1.

    `holds` counts the requests that hold it.
    """

    __slots__ = ("end", "filled", "holds", "keys", "parent")

    def __init__(self, keys: list[int], parent: "Node | None", end: int, filled: int, holds: int) -> None:
        self.keys = keys
        self.parent = parent
        self.end = end
        self.filled = filled
        self.holds = holds


class RadixCache:
    """The tree. `_heads`: first key -> node. `_idle`: the resident nodes without a hold, least recently used first."""

    __slots__ = ("_heads", "_idle", "_on_removed", "evicted_pages", "idle_pages", "resident_pages")

    def __init__(self, on_removed: Callable[[Sequence[int]], None] | None = None) -> None:
        """`on_removed` is called with the keys of evicted pages, in the order of their path."""
        self._on_removed = on_removed
        self._heads: dict[int, Node] = {}
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self.resident_pages = 0
        self.idle_pages = 0
        """Resident pages without a hold, which can be evicted."""
        self.evicted_pages = 0

    def __len__(self) -> int:
        return self.resident_pages

    def match(self, keys: Sequence[int], limit: int) -> tuple[int, int]:
        """How many leading pages of `keys[:limit]` are resident, and how many of those are idle."""
        heads = self._heads
        limit = min(limit, len(keys))
        matched = from_idle = 0
        while matched < limit:
            node = heads.get(keys[matched])
            if node is None:
                break
            pages = _shared(node.keys, keys, matched, limit)
            if not node.holds:
                from_idle += pages
            elif pages > node.filled:
                pages = node.filled
            matched += pages
            if pages < len(node.keys):
                break
        return matched, from_idle

    def known(self, keys: Sequence[int], limit: int) -> int:
        """How many leading pages of `keys[:limit]` are resident, or will be once the held paths are computed."""
        heads = self._heads
        limit = min(limit, len(keys))
        known = 0
        while known < limit and (node := heads.get(keys[known])) is not None:
            pages = _shared(node.keys, keys, known, limit)
            known += pages
            if pages < len(node.keys):
                break
        return known

    def hold(self, keys: Sequence[int], limit: int | None = None, *, after: Node | None = None) -> Node | None:
        """Hold the path `keys[:limit]`. `after`: the last node of the part that this request holds already.

        Pages that are not resident become ghosts. Returns the last node of the path.
        """
        heads = self._heads
        node = after
        at = 0 if after is None else after.end
        total = len(keys) if limit is None else limit
        while at < total:
            child = heads.get(keys[at])
            if child is None:
                node = heads[keys[at]] = Node(list(keys[at:total]), node, total, 0, 1)
                break
            pages = _shared(child.keys, keys, at, total)
            if pages < len(child.keys):
                child = self._split(child, pages)
            if not child.holds:
                self._idle.pop(child, None)  # a node that a split made is not in `_idle`
                self.idle_pages -= pages
            child.holds += 1
            node = child
            at += pages
        return node

    def resident(self, path: Node | None) -> int:
        """How many leading pages of a held path are resident."""
        while path is not None and not path.filled:
            path = path.parent
        return 0 if path is None else path.end - len(path.keys) + path.filled

    def fill(self, path: Node | None, pages: int) -> int:
        """Mark the first `pages` pages of a held path as resident. Returns how many of them are new."""
        new = 0
        while path is not None and path.filled < (count := len(path.keys)):
            known = count if path.end <= pages else pages - path.end + count
            if known > path.filled:
                new += known - path.filled
                path.filled = known
            path = path.parent
        self.resident_pages += new
        return new

    def release(self, path: Node | None) -> None:
        """Release a held path. Its resident pages that nothing else holds become the most recently used idle pages."""
        while path is not None:
            path.holds -= 1
            if not path.holds:
                filled = path.filled
                if filled:
                    self._idle[path] = None
                    self.idle_pages += filled
                    ghosts = len(path.keys) - filled
                    if ghosts:
                        del path.keys[filled:]
                        path.end -= ghosts
                else:
                    del self._heads[path.keys[0]]
            path = path.parent

    def evict(self, pages: int) -> None:
        """Drop the `pages` least recently used idle pages. The caller has checked that `idle_pages` suffice."""
        if pages <= 0:
            return
        self.evicted_pages += pages
        self.resident_pages -= pages
        self.idle_pages -= pages
        while pages > 0:
            node = next(iter(self._idle))
            count = len(node.keys)
            if self._on_removed is not None:
                self._on_removed(node.keys[-pages:])
            if count > pages:
                del node.keys[-pages:]
                node.end -= pages
                node.filled -= pages
                return
            del self._idle[node], self._heads[node.keys[0]]
            pages -= count

    def flush(self) -> None:
        """Drop all idle pages, which are neither counted nor reported as evicted."""
        for node in self._idle:
            del self._heads[node.keys[0]]
        self._idle.clear()
        self.resident_pages -= self.idle_pages
        self.idle_pages = 0

    def _split(self, node: Node, pages: int) -> Node:
        """Cut `node` after its first `pages` pages. `node` stays the end of the run. Returns the new beginning."""
        filled = min(node.filled, pages)
        upper = Node(node.keys[:pages], node.parent, node.end - len(node.keys) + pages, filled, node.holds)
        node.keys = node.keys[pages:]
        node.filled -= filled
        node.parent = upper
        self._heads[upper.keys[0]] = upper
        self._heads[node.keys[0]] = node
        return upper


def _shared(run: list[int], keys: Sequence[int], at: int, limit: int) -> int:
    """How many leading pages `run` and `keys[at:limit]` share, at least one. Bisects, since the keys are chained."""
    most, left = len(run), limit - at
    if most > left:  # noqa: PLR1730 - min() takes three times as long
        most = left
    if run[most - 1] == keys[at + most - 1]:
        return most
    least = 1
    while least < most - 1:
        middle = (least + most) // 2
        if run[middle - 1] == keys[at + middle - 1]:
            least = middle
        else:
            most = middle
    return least
