"""Simulation: the real driver loop, books and policy with thousands of workers, in virtual time (`virtual_cluster.py`).

    python benchmarks/simulate_cluster.py                     1,000 nodes with 8 GPUs each, 15 minutes
    python benchmarks/simulate_cluster.py --nodes 100 --seconds 300

It prints how much of the GPUs was used for work that counted, the most that waited on each edge and how many decisions
the driver makes in a second of CPU time, and draws the timeline: results/simulation.json and .svg, which
docs/performance.md shows; a smaller cluster only prints. The run ends with its last task: one that straggles on a slow
node takes ten times as long as others, so it also says when 99 of 100 tasks were through.
"""

from __future__ import annotations

import argparse
import json

from process_measurement import HERE
from virtual_cluster import Outcome, World, drained, simulate

WARM_S = 200.0
"""Until the first tasks of the slowest stage are done, and its rate is known and acted on."""

RESULT = HERE / "results" / "simulation.json"
MARK = "simulation"


def report(world: World, outcome: Outcome, warm: float) -> dict[str, str]:
    """A figure of a run: its name, and its value."""
    end = drained(world, outcome)
    per_s = outcome.decisions / outcome.policy_cpu_s
    rows = [
        ("nodes, GPUs", f"{world.nodes:,}, {world.nodes * world.gpus:,}"),
        ("tasks through all stages", f"{outcome.results:,} of {world.tasks:,}"),
        (
            "virtual time until 99 % are through, until all are",
            f"{through(outcome, 0.99):,.0f} s, {outcome.seconds:,.0f} s",
        ),
        ("GPUs in use, after warm-up", f"{100 * outcome.utilisation(warm, end):.1f} %"),
        ("nodes lost, calls repeated", f"{sum(count for _, count in world.losses)}, {outcome.lost_calls:,}"),
    ]
    for step, most in zip(world.steps[1:], outcome.most_bytes[1:], strict=True):
        rows.append((f"most that waited before {step.name}", f"{most / 2**30:.1f} GiB"))
    rows += [
        ("decisions", f"{outcome.decisions:,}"),
        ("decisions per second of CPU", f"{per_s:,.0f}"),
        ("CPU of a decision", f"{1e6 / per_s:.0f} µs"),
        ("CPU of the whole simulation", f"{outcome.cpu_s:.0f} s"),
    ]
    return dict(rows)


def table(rows: dict[str, str] | None = None) -> str:
    """For docs/performance.md: the saved run, unless another one is given."""
    if rows is None:
        rows = json.loads(RESULT.read_text()) if RESULT.exists() else {"not run yet": ""}
    return "\n".join(["| Simulation | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows.items())])


def through(outcome: Outcome, part: float) -> float:
    """When so many of the tasks were through all stages."""
    return sorted(outcome.ends)[int(part * (outcome.results - 1))]


COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1")


def picture(world: World, outcome: Outcome) -> str:
    """The timeline as SVG: busy workers of each stage, and what waits before it."""
    width, height, margin = 900, 220, 60
    samples = outcome.samples
    end = samples[-1].at
    parts = []
    charts = (
        ("busy workers", lambda s: s.busy, "{:,.0f}"),
        ("GiB that wait before the stage", lambda s: [b / 2**30 for b in s.waiting_bytes], "{:,.0f}"),
    )
    for number, (title, of, form) in enumerate(charts):
        top = margin / 2 + number * (height + margin)
        most = max(max(of(sample)) for sample in samples) or 1
        parts.append(f'<text x="{margin}" y="{top - 8}">{title}, at most {form.format(most)}</text>')
        parts.append(f'<rect x="{margin}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#ccc"/>')
        for index, step in enumerate(world.steps):
            points = " ".join(
                f"{margin + width * s.at / end:.1f},{top + height * (1 - of(s)[index] / most):.1f}" for s in samples
            )
            colour = COLOURS[index % len(COLOURS)]
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            x = margin + width - 90 * (len(world.steps) - index)
            parts.append(f'<text x="{x}" y="{top - 8}" fill="{colour}">{step.name}</text>')
        for part, count in world.losses:
            x = margin + width * part * world.seconds / end
            parts.append(f'<line x1="{x:.0f}" x2="{x:.0f}" y1="{top}" y2="{top + height}" stroke="#d00" opacity=".5"/>')
            parts.append(f'<text x="{x + 3:.0f}" y="{top + 12}" fill="#d00">{count} nodes lost</text>')
    parts.append(f'<text x="{margin}" y="{2 * (height + margin)}">0 to {end:,.0f} s</text>')
    size = f'width="{width + 2 * margin}" height="{2 * (height + margin) + 20}"'
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=World.nodes)
    parser.add_argument("--seconds", type=float, default=World.seconds)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    losses = tuple((part, max(1, count * options.nodes // 1000)) for part, count in World.losses)
    world = World(nodes=options.nodes, seconds=options.seconds, seed=options.seed, losses=losses)
    outcome = simulate(world)
    rows = report(world, outcome, WARM_S)
    print(table(rows))
    if world == World():
        RESULT.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
        RESULT.with_suffix(".svg").write_text(picture(world, outcome))
        print(f"timeline: {RESULT.with_suffix('.svg')}")


if __name__ == "__main__":
    main()
