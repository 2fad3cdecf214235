"""Makes the dashboards of deploy/grafana with Grafana's own SDK, from what `panels` says.

.venv/bin/python -m scripts.grafana            write them
.venv/bin/python -m scripts.grafana --check    exit with 1 if a file is not the one that would be written
"""

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueGraphMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh
from scripts.grafana.panels import BOARDS, Board, Shown

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT: Final = {"figure": 4, "graph": 8}
_SPAN: Final = {"figure": 6, "graph": 12}


def text_of(board: Board) -> str:
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["warmroute"])
        .time("now-6h", "now")
        .refresh("30s")
        .readonly()
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("job")
            .label("Job")
            .datasource(_SOURCE)
            .query("label_values(warmroute_build_info, job)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(True)
            .all_value(".*")
        )
    )
    ids = itertools.count(1)
    for title, panels in board.rows:
        built = built.with_row(dashboard.Row(title).id(next(ids)))
        for panel in panels:
            built = built.with_panel(_panel(panel).id(next(ids)))
    return JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"


def _panel(shown: Shown) -> Any:
    panel: Any = timeseries.Panel()
    if shown.kind == "figure":
        reduced = common.ReduceDataOptions().calcs(["lastNotNull"])
        panel = stat.Panel().graph_mode(BigValueGraphMode.NONE).reduce_options(reduced)
    panel = panel.title(shown.title).description(shown.description).unit(shown.unit).datasource(_SOURCE)
    panel = panel.height(_HEIGHT[shown.kind]).span(_SPAN[shown.kind])
    for number, query in enumerate(shown.queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + number))
        if shown.kind == "figure":
            target = target.instant()
        elif "ttft" in query.expr or "queue_wait" in query.expr:
            target = target.exemplar(True)
        panel = panel.with_target(target)
    return panel


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.grafana", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a file is out of date")
    asked = parser.parse_args(argv)
    made = {FOLDER / f"{board.uid}.json": text_of(board) for board in BOARDS}
    old = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    if asked.check:
        print("\n".join(f"{path.name} is out of date: run python -m scripts.grafana" for path in old))
        return int(bool(old))
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
