"""When KV events are published: at the moments at which SGLang publishes them.

A rank publishes its recorded events at the end of every step with prefill, just after the first tokens; after every
`DECODE_INTERVAL` decode steps; and whenever it has nothing to do. So a rank that only decodes publishes its events
late. The first message of a rank says that its cache is empty.
"""

from typing import Any, Final

from warmroute_lab.engine.events.kv_events import Path, Recorder
from warmroute_lab.engine.events.kv_publisher import KvEventsConfig, Publisher
from warmroute_lab.engine.model.work import Step, Work
from warmroute_lab.engine.request.job import Job

DECODE_INTERVAL: Final = 40
"""SGLang's `--decode-log-interval`."""


def path_of(work: Work) -> Path:
    job: Job = work.owner
    request = job.request
    return Path(request.rendered, job.answers[0].rendered, request.cache_salt, request.session_id)


class KvFeed:
    def __init__(self, config: KvEventsConfig, ranks: int, page_size: int, *, bigram: bool) -> None:
        """Raises: OSError if a port cannot be opened."""
        self.page_size = page_size
        self.recorders = [Recorder(page_size, path_of, bigram=bigram) for _ in range(ranks)]
        self._decoded = [0] * ranks
        self._publisher = Publisher(config, ranks)

    def open(self) -> None:
        self._publisher.serve_replays()
        for rank, recorder in enumerate(self.recorders):
            recorder.cleared()
            self.rest(rank)

    def close(self) -> None:
        self._publisher.close()

    def describe(self) -> dict[str, Any]:
        return self._publisher.describe(self.page_size)

    def after_step(self, rank: int, step: Step | None) -> None:
        """Publish if SGLang publishes after a step like this one; None stands for a rank that has nothing to do."""
        if step is None:
            self.rest(rank)
        elif step.prefill:
            self._publish(rank)
        elif step.decode:
            self._decoded[rank] = (self._decoded[rank] + 1) % DECODE_INTERVAL
            if not self._decoded[rank]:
                self._publish(rank)

    def rest(self, rank: int) -> None:
        """Publish all events. Copies to the host tier come one call later than the pages they copy: hence two calls."""
        self._publish(rank)
        self._publish(rank)

    def _publish(self, rank: int) -> None:
        self._publisher.publish(rank, self.recorders[rank].take())
