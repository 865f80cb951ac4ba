"""Medians, ratios and verdict from the samples that a run has written.

Medians are over the quiet samples of a cell; `~` marks a cell that has none. A ratio is the median of the ratios of the
samples of the same round, which saw nearly the same machine.
"""

import json
from pathlib import Path
from statistics import median

from tests.bench.loads import LOADS, Sample

FOREIGN, STEAL = 0.2, 0.15  # CPU seconds per second that others used, that the hypervisor took
PEERS = ("nginx", "vllm-router")
NO_VERDICT = ("direct", "nginx", "vllm-router")


def noisy(sample: Sample) -> bool:
    return sample["foreign"] > FOREIGN or sample["steal"] > STEAL


def progress(s: Sample) -> str:
    """One line while run is at work."""
    return (
        f" rps={s['rps']:.0f} chunks/s={s['cps']:.0f} p50={s['lat50']:.0f} p99={s['lat99']:.0f} gap99={s['gap99']:.0f}"
        f" ttft={s['ttft50']:.0f} proxy_cpu={s['proxy_cpu'] / s['seconds']:.2f}"
        f" bench_cpu={s['bench_cpu'] / s['seconds']:.2f} live={s['live']} left={s['left_03']}/{s['left_33']}"
        f" new_conns={s['new_conns']} errors={s['errors']} bad={s['bad']} checked={s['checked']}"
        f" foreign={s['foreign']:.2f} steal={s['steal']:.2f}"
        f" attempt={s['attempt']}{' NOISY' if noisy(s) else ''}"
    )


def median_of_quiet(pairs: list[tuple[float | None, bool]]) -> tuple[float | None, bool]:
    """(value, is noisy) pairs -> their median, and whether it rests on noisy values."""
    values = [(v, n) for v, n in pairs if v is not None]
    quiet = [v for v, n in values if not n]
    if quiet or not values:
        return (median(quiet) if quiet else None), False
    return median(v for v, _ in values), True


class Results:
    """All samples: test -> name -> {(file, round): sample}."""

    def __init__(self, files: list[dict]):
        self.tests: dict[str, dict[str, dict]] = {}
        self.memory: dict[str, dict] = {}
        for i, file in enumerate(files):
            for name, tests in file.items():
                for test, samples in tests.items():
                    if test == "rss":
                        self.memory[name] = samples
                        continue
                    cell = self.tests.setdefault(test, {}).setdefault(name, {})
                    cell |= {(i, s["round"]): s for s in samples}
        for names in self.tests.values():
            for cell in names.values():
                for key, sample in cell.items():
                    if key in names.get("direct", {}) and cell is not names["direct"]:
                        sample["direct"] = names["direct"][key]

    def figure(self, test: str, name: str, get) -> tuple[float | None, bool]:
        return median_of_quiet([(get(s), noisy(s)) for s in self.tests[test][name].values()])

    def ratio(self, test: str, name: str, peer: str, get) -> tuple[float | None, bool]:
        ours, theirs = self.tests[test][name], self.tests[test].get(peer, {})
        pairs = []
        for key in ours.keys() & theirs.keys():
            a, b = get(ours[key]), get(theirs[key])
            if a and b and b > 0:
                pairs.append((a / b, noisy(ours[key]) or noisy(theirs[key])))
        return median_of_quiet(pairs)

    def bad(self, test: str, name: str) -> int:
        """Answers with a wrong status or a wrong model name, and broken connections."""
        return sum(s["bad"] + s["errors"] for s in self.tests[test][name].values())

    def summary(self) -> dict:
        """What --json prints, without the verdict."""
        tests: dict = {}
        for test in [t for t in LOADS if t in self.tests]:
            for name, cell in self.tests[test].items():
                row = {
                    "samples": len(cell),
                    "quiet": sum(not noisy(s) for s in cell.values()),
                    "bad": self.bad(test, name),
                    "checked": sum(s["checked"] for s in cell.values()),
                    "figures": {},
                    "ratios": {p: {} for p in PEERS},
                }
                for figure, get in LOADS[test].figures:
                    row["figures"][figure] = self.figure(test, name, get)[0]
                    for peer in PEERS:
                        row["ratios"][peer][figure] = self.ratio(test, name, peer, get)[0]
                tests.setdefault(test, {})[name] = row
        return {"tests": tests, "rss": self.memory}

    def judge(self, target: dict, name: str) -> dict:
        """The target with `value` (None: not measured), `noisy`, `bad` and `pass`; with bad answers nothing passes."""
        test, peer, value, rough, bad = target["test"], target["peer"], None, False, 0
        if test == "rss" and name in self.memory:
            value, bad = self.memory[name]["per_1000"], self.memory[name]["bad"] + self.memory[name]["errors"]
        elif name in self.tests.get(test, {}):
            get = dict(LOADS[test].figures)[target["figure"]]
            value, rough = self.ratio(test, name, peer, get) if peer else self.figure(test, name, get)
            bad = self.bad(test, name)
        passed = None
        if value is not None:
            within = value >= target["at_least"] if "at_least" in target else value <= target["at_most"]
            passed = within and not bad
        return target | {"name": name, "value": value, "noisy": rough, "bad": bad, "pass": passed}

    def names(self) -> list[str]:
        return list(dict.fromkeys([n for t in self.tests.values() for n in t] + list(self.memory)))


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"


def print_table(results: Results, test: str) -> None:
    load = LOADS[test]
    print(f"\n## {test}: {load.title}")
    print(
        f"{'':14}"
        + "".join(f"{figure:>14}" for figure, _ in load.figures)
        + "".join(f"{'x ' + p:>15}" for p in PEERS)
        + f"   ({load.figures[0][0]}; samples)"
    )
    for name, cell in results.tests[test].items():
        row = f"{name:14}" + "".join(f"{number(results.figure(test, name, get)[0]):>14}" for _, get in load.figures)
        for peer in PEERS:
            value, rough_ratio = results.ratio(test, name, peer, load.figures[0][1])
            row += f"{('~' if rough_ratio else '') + number(value):>15}"
        rough, bad = all(noisy(s) for s in cell.values()), results.bad(test, name)
        print(row + f"   {'~' if rough else ''}[{len(cell)}]" + (f" bad={bad}" if bad else ""))


def print_memory(memory: dict[str, dict]) -> None:
    print("\n## rss: PSS in MiB with 1000 open streams")
    print(
        f"{'':14}{'before':>10}{'at 1000':>10}{'per 1000':>10}{'live':>7}"
        "   streams to replicas still open .3 s / 3.3 s after the clients left"
    )
    for name, m in memory.items():
        bad = m["bad"] + m["errors"]
        print(
            f"{name:14}{m['before']:10.1f}{m['at_1000']:10.1f}{number(m['per_1000']):>10}{m['live']:7}"
            f"   {m['left_03']} / {m['left_33']}" + (f" bad={bad}" if bad else "")
        )


def print_verdict(verdict: list[dict]) -> None:
    print("\n## Targets")
    words = {True: "pass", False: "FALLS SHORT", None: "not measured"}
    for v in verdict:
        bound = f">= {v['at_least']}" if "at_least" in v else f"<= {v['at_most']}"
        against = f"x {v['peer']}" if v["peer"] else ""
        word = words[v["pass"]] + (" (noisy)" if v["noisy"] else "") + (f" ({v['bad']} bad answers)" if v["bad"] else "")
        print(f"{v['name']:14}{v['test']:6}{v['figure']:14}{against:15}{bound:>9}{number(v['value']):>10}  {word}")


def show(files: list[dict], targets: Path | None, as_json: bool) -> bool:
    """Prints it all; whether every target that was given is met."""
    results = Results(files)
    verdict = None
    if targets:
        judged = [n for n in results.names() if n not in NO_VERDICT]
        verdict = [results.judge(t, n) for n in judged for t in json.loads(targets.read_text()) if n == t.get("name", n)]
    if as_json:
        print(json.dumps(results.summary() | ({} if verdict is None else {"verdict": verdict}), indent=1))
        return all(v["pass"] for v in verdict or [])
    for test in LOADS:
        if test in results.tests:
            print_table(results, test)
    if results.memory:
        print_memory(results.memory)
    if verdict is not None:
        print_verdict(verdict)
    return all(v["pass"] for v in verdict or [])
