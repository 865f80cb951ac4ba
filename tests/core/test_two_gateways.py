"""Two gateways on one fleet and one directory, in random order: they never fight, never give a used name a second
meaning on a running process, never unload what the other needs, never answer by a wrong revision.

The world (directory, engines, clock) is a model; what the gateways decide is the product's own core.
"""

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import integers, sampled_from

from gateway.core.adapters import Adapter, Catalog, Home, Revision
from gateway.core.picker import pick
from gateway.core.placement import Everywhere, fitting
from gateway.core.plan import Load, Unload, plan
from gateway.core.registry import Lease, Registry
from gateway.core.replica import LoraSupport, ModelEntry, Observation, Phase, Replica, Roots

ROOTS = Roots("/adapters", "/adapters/.lora-gateway")
BASE = ModelEntry("base", "/models/base", None)
LINGER, DRIFT, SCAN = 60.0, 10.0, 5.0
NAMES = ("sql", "sql", "poet")  # mostly one, so that its history grows long
REPLICAS = ("r1:8000", "r2:8000")


def adapter(name: str, version: int, home: Home) -> Adapter:
    digest = f"{version:012x}"
    path = f"/adapters/{name}"
    load_path = path if home is Home.OWN_PATH else f"/adapters/.lora-gateway/{name}@{digest}"
    return Adapter(name, digest, path, load_path, home, "base", 8, 1000)


@dataclass
class Engine:
    """One vLLM process: what it holds, every name it ever held, and what runs on it."""

    number: int
    held: dict[str, str] = field(default_factory=dict)  # served name -> path
    meanings: dict[str, str] = field(default_factory=dict)  # every name ever held -> adapter revision it meant
    running: list[str] = field(default_factory=list)

    def entries(self) -> list[ModelEntry]:
        return [BASE, *(ModelEntry(name, path, "base") for name, path in self.held.items())]


class Gateway:
    """The decisions of one gateway over its own registry; what it has seen of a process since that started."""

    def __init__(self, directory: dict[str, Adapter], now: float) -> None:
        self.registry = Registry()
        self.used: dict[str, set[str]] = {r: set() for r in REPLICAS}
        self.process: dict[str, int] = {}
        self.witnessed: dict[str, bool] = {}
        self.leases: list[Lease] = []
        for replica_id in REPLICAS:
            self.registry.join(Replica(replica_id, f"http://{replica_id}"))
        self.scan(directory, now)

    def scan(self, directory: dict[str, Adapter], now: float) -> None:
        self.registry.scans += 1
        self.registry.replace_catalog(Catalog(dict(directory)), now)

    def observe(self, replica_id: str, engine: Engine, now: float, *, young: bool) -> None:
        seen = Observation.of(engine.entries(), ROOTS)
        if self.process.get(replica_id) != engine.number:
            self.process[replica_id] = engine.number
            self.used[replica_id].clear()
            self.witnessed[replica_id] = young
        self.used[replica_id].update(seen.names, seen.static)
        record = self.registry.stations[replica_id].replica.adopting(seen, ())
        self.registry.publish(replace(record, phase=Phase.READY, lora=LoraSupport.SUPPORTED), now)

    def plan(self, replica_id: str, engine: Engine, now: float) -> list[Load | Unload]:
        station = self.registry.stations[replica_id]
        fit = fitting(self.registry.catalog, station.replica.base_models, self.registry.bases)
        wanted = Everywhere().wanted(fit, station.replica)
        planned = plan(
            wanted,
            station.replica,
            used=self.used[replica_id],
            idle=not engine.running,
            witnessed=self.witnessed.get(replica_id, False),
            retired=self.registry.retired(now, LINGER),
            leased=station.by_name,
            now=now,
        )
        return [*planned.loads, *planned.unloads]


class TwoGateways(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.versions = 0
        self.home = Home.LINK
        self.directory: dict[str, Adapter] = {}
        self.engines = {r: Engine(n) for n, r in enumerate(REPLICAS)}
        self.born = dict.fromkeys(REPLICAS, self.now)
        self.processes = len(REPLICAS)
        self.gateways = [Gateway(self.directory, self.now) for _ in range(2)]
        self.observed_at = [dict.fromkeys(REPLICAS, 0.0) for _ in range(2)]
        self.scanned_at = [self.now, self.now]
        for which in (0, 1):
            for replica_id in REPLICAS:
                self._observe(which, replica_id)

    # the directory

    @rule(name=sampled_from(NAMES))
    def put(self, name: str) -> None:
        self.versions += 1
        self.directory[name] = adapter(name, self.versions, self.home)

    @rule(name=sampled_from(NAMES), back=integers(1, 3))
    def roll_back(self, name: str, back: int) -> None:
        if self.versions - back > 0 and name in self.directory:
            self.directory[name] = adapter(name, self.versions - back, self.home)

    @rule(name=sampled_from(NAMES))
    def remove(self, name: str) -> None:
        self.directory.pop(name, None)

    @rule(home=sampled_from([Home.LINK, Home.OWN_PATH]))
    def snapshots_become_possible_or_not(self, home: Home) -> None:
        self.home = home

    # time, processes

    @rule(seconds=sampled_from([0.5, 3.0, 9.0, 30.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        """Each gateway scans and observes at its intervals, however late it acts."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + SCAN)
            for which in (0, 1):
                self._scan(which)
                for replica_id in REPLICAS:
                    if self.now - self.observed_at[which][replica_id] >= DRIFT:
                        self._observe(which, replica_id)

    @rule(replica_id=sampled_from(REPLICAS))
    def replica_restarts(self, replica_id: str) -> None:
        for gateway in self.gateways:
            gateway.leases = [lease for lease in gateway.leases if not self._ended_with(lease, replica_id)]
        self.engines[replica_id] = Engine(self.processes)
        self.born[replica_id] = self.now
        self.processes += 1

    def _ended_with(self, lease: Lease, replica_id: str) -> bool:
        if lease.replica == replica_id:
            lease.release()
        return lease.replica == replica_id

    @rule(which=integers(0, 1))
    def gateway_restarts(self, which: int) -> None:
        for lease in self.gateways[which].leases:
            self.engines[lease.replica].running.remove(lease.served_name)
        self.gateways[which] = Gateway(self.directory, self.now)
        self.scanned_at[which] = self.now
        for replica_id in REPLICAS:
            self._observe(which, replica_id)

    # what gateways do

    @rule(which=integers(0, 1))
    def scan(self, which: int) -> None:
        self._scan(which)

    @rule(which=integers(0, 1), replica_id=sampled_from(REPLICAS))
    def observe(self, which: int, replica_id: str) -> None:
        self._observe(which, replica_id)

    @rule(which=integers(0, 1), replica_id=sampled_from(REPLICAS), first=integers(0, 3))
    def act(self, which: int, replica_id: str, first: int) -> None:
        engine = self.engines[replica_id]
        if self.gateways[which].process.get(replica_id) != engine.number:
            return  # its connection broke: it observes before it acts
        actions = self.gateways[which].plan(replica_id, engine, self.now)
        if actions:
            self._apply(which, replica_id, actions[first % len(actions)])

    @rule(which=integers(0, 1), name=sampled_from(NAMES), turn=integers(0, 5))
    def request(self, which: int, name: str, turn: int) -> None:
        gateway = self.gateways[which]
        route = gateway.registry.route(name)
        seat = pick(route.seats, turn) if route is not None else None
        if route is None or seat is None:
            return
        lease = gateway.registry.lease(route, name, seat)
        engine = self.engines[lease.replica]
        if lease.served_name not in engine.held:  # vLLM answers 404: the belief is dropped, the request goes on elsewhere
            lease.release()
            self._observe(which, lease.replica)
            return
        assert engine.meanings[lease.served_name] == str(Revision(name, lease.revision or "")), "a wrong revision answers"
        engine.running.append(lease.served_name)
        gateway.leases.append(lease)

    @precondition(lambda self: any(gateway.leases for gateway in self.gateways))
    @rule(which=integers(0, 1))
    def request_ends(self, which: int) -> None:
        if self.gateways[which].leases:
            lease = self.gateways[which].leases.pop(0)
            lease.release()
            self.engines[lease.replica].running.remove(lease.served_name)

    @rule()
    def the_fleet_comes_to_rest(self) -> None:
        """Left alone with nothing running, everything converges and stays."""
        for which in (0, 1):
            while self.gateways[which].leases:
                self.request_ends(which)
        quiet = 0
        for _ in range(40):
            self.time_passes(30.0)
            quiet = 0 if self._everybody_acts() else quiet + 1
            if quiet * 30.0 > 2 * LINGER:
                break
        else:
            raise AssertionError("the gateways go on for ever")
        for engine in self.engines.values():
            assert {engine.meanings[n] for n in engine.held} == {str(a.revision) for a in self.directory.values()}

    def _everybody_acts(self) -> bool:
        acted = False
        for which in (0, 1):
            for replica_id in REPLICAS:
                self._observe(which, replica_id)
                for action in self.gateways[which].plan(replica_id, self.engines[replica_id], self.now):
                    acted = True
                    self._apply(which, replica_id, action)
        return acted

    # the world's side

    def _scan(self, which: int) -> None:
        self.gateways[which].scan(self.directory, self.now)
        self.scanned_at[which] = self.now

    def _observe(self, which: int, replica_id: str) -> None:
        young = self.now - self.born[replica_id] < LINGER
        self.gateways[which].observe(replica_id, self.engines[replica_id], self.now, young=young)
        self.observed_at[which][replica_id] = self.now

    def _apply(self, which: int, replica_id: str, action: Load | Unload) -> None:
        engine, gateway = self.engines[replica_id], self.gateways[which]
        if isinstance(action, Load):
            name, meaning = action.served_name, str(action.adapter.revision)
            gateway.used[replica_id].add(name)
            if name not in engine.held:
                reused = name in engine.meanings and engine.running
                assert not reused, f"{name} is used a second time while {engine.running} run"
                engine.held[name], engine.meanings[name] = action.adapter.load_path, meaning
        else:
            self._scan(which)  # a gateway scans once more before it unloads
            if action.revision in gateway.registry.retired(self.now, LINGER):
                current = {a.revision for a in self.directory.values()}
                assert action.revision not in current, "unloads what the other needs"
                engine.held.pop(action.served_name, None)
        self._observe(which, replica_id)

    @invariant()
    def every_held_name_means_what_its_path_says(self) -> None:
        for engine in self.engines.values():
            for name, path in engine.held.items():
                shown = Observation.of([ModelEntry(name, path, "base")], ROOTS).names
                assert str(shown[name]) == engine.meanings[name]


TestTwoGateways = TwoGateways.TestCase
TestTwoGateways.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def test_a_restarted_gateway_gives_no_plain_name_a_second_meaning_while_a_request_runs() -> None:
    world = TwoGateways()
    world.put("sql")
    world.scan(0)
    world.act(0, "r1:8000", 0)
    world.request(0, "sql", 0)
    assert world.engines["r1:8000"].running == ["sql"]
    world.remove("sql")
    world.time_passes(70.0)
    world.act(1, "r1:8000", 0)  # the other gateway has no request of its own there: it unloads
    assert world.engines["r1:8000"].held == {}
    world.gateway_restarts(1)
    world.put("sql")
    world.scan(1)
    world.act(1, "r1:8000", 0)
    assert list(world.engines["r1:8000"].held) == [str(world.directory["sql"].revision)]
