"""A report for hardware that one does not have: no weights, no device, only a plan and its reasons.

The picture of the plan for four A100s is offline_report.svg.
"""

import textwrap
from pathlib import Path

import baechi
from baechi import report, zoo
from baechi.report.facts import Facts


def main() -> None:
    model, batch = zoo.inception_v3("full", device="meta")
    for cluster in ("1 x A100-80GB", "4 x A100-80GB"):
        count, _, kind = cluster.split()
        devices = baechi.Cluster.uniform(int(count), like=kind)
        graph = baechi.profile(model, batch, cluster=devices, source="estimate")
        plan = baechi.place(graph, devices, "m-etf", optimizer="sgd")
        timeline = plan.timeline
        fullest = max(timeline.peak_bytes, key=lambda name: timeline.peak_bytes[name])
        share = timeline.peak_bytes[fullest] / devices.device(fullest).memory_bytes
        print(f"{cluster}: {timeline.makespan_s * 1e3:.1f} ms a step, fullest {fullest} ({share:.0%})")
    print(textwrap.fill(Facts(plan).verdict, 100))
    Path(__file__).with_suffix(".svg").write_text(report.to_svg(plan), encoding="utf-8")


if __name__ == "__main__":
    main()
