"""Makes one replica match the directory: probe, observe, plan, apply, publish, again and again.

It alone writes its replica's record. What the replica holds is never remembered but looked at; what it was told to load
counts only once it said yes or its own model list shows it. A signal (a request that waits, a new catalog, a refused
connection) only says "look again".
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

import structlog

from gateway.control.loader import FOREVER, Loader
from gateway.control.pulse import REASON as SILENT
from gateway.control.pulse import Pulse
from gateway.control.replica_client import Probe, ReplicaClient, ReplicaError
from gateway.control.surroundings import Surroundings
from gateway.core.adapters import Revision
from gateway.core.picker import Station
from gateway.core.replica import Health, Observation, Phase, Replica
from gateway.core.wakeup import Wakeup

log = structlog.get_logger("gateway.control")


class Reconciler:
    """One replica's loop. `run()` ends only when it is cancelled."""

    def __init__(self, station: Station, client: ReplicaClient, around: Surroundings) -> None:
        self.id = station.replica.id
        self._station, self._client, self._around = station, client, around
        self._dirty = asyncio.Event()
        self._loader = Loader(station, client, around, self._dirty.set)
        self._health = Health()
        self._mute = False  # its last probe got no answer: while it hangs, looking would only delay the verdict
        self._pulse = Pulse(station, client, around.clock, around.policy.silence)
        self._probe_at = self._observe_at = 0.0
        self._started_at: float | None = None  # of the present process, as its metrics say
        self._fresh = True  # came up since the last observation
        self._was_away = False  # it did not answer before it came up
        self._doubt = False  # it may be another process than before
        self._told_draining = self._drained = False
        self._alive = False  # it served, and is not known to have ended since
        self._observations, self._observed = 0, Wakeup()

    @property
    def replica(self) -> Replica:
        return self._station.replica

    # signals

    def wake(self) -> None:
        self._dirty.set()

    def look(self) -> None:
        """What it holds may have changed: observe now."""
        self._observe_at = 0.0
        self._dirty.set()

    def suspect(self) -> None:
        """Somebody could not connect: probe now."""
        self._probe_at = 0.0
        self._dirty.set()

    def tell_draining(self) -> None:
        """The replica answered that it is shutting down."""
        self._told_draining = True
        self._set_phase(*self._serving_phase())
        self.suspect()

    def drain(self, on: bool) -> None:
        """An operator's wish: no new requests while it is set."""
        self._drained = on
        if self.replica.phase in (Phase.READY, Phase.DRAINING):
            self._set_phase(*self._serving_phase())
        self._dirty.set()

    def retry(self, revision: Revision) -> None:
        """Forget that this revision failed here: an operator says that it may work now."""
        failures = {r: f for r, f in self.replica.failures.items() if r != revision}
        self._publish(replace(self.replica, failures=MappingProxyType(failures)))
        self.look()

    async def looked(self) -> None:
        """Until its model list has been read again; for ever while it cannot be."""
        count = self._observations
        while self._observations == count:
            await self._observed.wait(60.0)

    def forget(self, served_name: str) -> None:
        """The replica denied a name that it was believed to hold."""
        if served_name in self.replica.seen.names:
            self._note_drift([served_name], "the replica denied it")
            self._publish(self.replica.without(served_name))
        self._doubt = True
        self.look()

    # the loop

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as loads:
                while True:
                    self._dirty.clear()  # before looking at the world: a change during the pass is kept
                    delay = await self._guarded_pass(loads)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(delay):
                            await self._dirty.wait()
        finally:
            self._loader.rest()
            await self._client.close()

    async def _guarded_pass(self, loads: asyncio.TaskGroup) -> float:
        try:
            return await self._pass(loads)
        except Exception:
            log.exception("a look at the replica failed; trying again", replica=self.id)
            return self._around.policy.probe_interval

    async def _pass(self, loads: asyncio.TaskGroup) -> float:
        clock = self._around.clock
        if clock() >= self._probe_at:
            self._judge(await self._client.probe())
            self._probe_at = clock() + self._around.policy.probe_interval
        if self._loader.told_draining:
            self._loader.told_draining = False
            self.tell_draining()
        if self._health.up and not self._mute and (self._fresh or self._loader.observe or clock() >= self._observe_at):
            await self._observe()
        if self._health.up and self._pulse.is_due():
            loads.create_task(self._feel_pulse(), name=f"a token of {self.id}")
        after = FOREVER
        if self.replica.phase in (Phase.READY, Phase.DRAINING):
            after = await self._loader.act(loads)
        else:
            self._loader.rest()
        return max(0.0, min(self._probe_at - clock(), after))

    async def _feel_pulse(self) -> None:
        was_silent = self._pulse.silent
        await self._pulse.ask()
        if self._pulse.silent != was_silent and self._health.up:
            self._set_phase(*self._serving_phase())
            self._dirty.set()

    def _judge(self, probe: Probe) -> None:
        """A refused connection means that the process is gone; other failures count up to the limit."""
        policy, was_up = self._around.policy, self._health.up
        if probe.refused:
            self._health = Health()
        else:
            self._health = self._health.after(probe.ok, rise=policy.healthy_after, fall=policy.unhealthy_after)
        self._mute = probe.mute
        if probe.ok:
            self._station.last_seen = self._around.wall()
        if self._health.up:
            self._fresh = self._fresh or not was_up
            return
        self._pulse.forget()
        if probe.refused:
            self._note_death(self._around.clock())
        self._fresh, self._was_away, self._told_draining = True, True, False
        gone = probe.refused or was_up or self.replica.phase is not Phase.STARTING
        if not probe.ok:
            self._set_phase(Phase.DOWN if gone else Phase.STARTING, probe.reason)

    async def _observe(self) -> None:
        self._loader.observe = False
        try:
            seen = Observation.of(await self._client.models(), self._around.roots)
            missing = [name for name in self.replica.seen.names if name not in seen.names]
            if self._fresh or self._doubt or missing or self._told_draining or self.replica.failures:
                await self._notice_restart()
        except ReplicaError as error:
            self._observe_at = self._around.clock() + self._around.policy.probe_interval
            if self._fresh or error.credentials:
                phase = Phase.DOWN if self.replica.phase is Phase.DOWN or error.credentials else Phase.STARTING
                self._publish(replace(self.replica, refuses_key=error.credentials))
                self._set_phase(phase, str(error))
            return
        self._adopt(seen, missing)

    def _adopt(self, seen: Observation, missing: Collection[str]) -> None:
        """What was seen is what is: publish it."""
        self._fresh = self._doubt = self._was_away = False
        self._alive = True
        self._observations += 1
        self._observed.notify()
        self._observe_at = self._around.clock() + self._around.policy.drift_interval
        self._loader.used.update(seen.names, seen.static)
        if missing:
            self._note_drift(missing, "it no longer holds them")
        catalog = self._around.registry.catalog
        known = {r for r in self.replica.failures if catalog.get(r) is not None}
        self._publish(self.replica.adopting(seen, known))
        self._set_phase(*(self._serving_phase() if seen.base_models else (Phase.STARTING, "it lists no base model")))

    async def _notice_restart(self) -> None:
        """Tell a new process by the start time in its metrics; without one a replica that was away counts as new."""
        try:
            started_at = (await self._client.vitals()).started_at
        except ReplicaError:
            started_at = None
        if started_at == self._started_at if started_at is not None else not self._fresh:
            return
        # a name that was loaded stays at least the linger time; a replica without metrics cannot be judged
        young = started_at is None or self._around.wall() - started_at < self._around.policy.unload_linger
        self._loader.witnessed = self._was_away or young
        if started_at is not None:
            self._note_death(self._around.clock() - max(0.0, self._around.wall() - started_at))
        self._started_at, self._told_draining = started_at, False
        self._loader.used.clear()
        self._publish(self.replica.reborn())

    def _note_death(self, at: float) -> None:
        """Its process is gone; unless it was told to go, whatever it ran then is suspect."""
        was_alive, self._alive = self._alive, False
        if not was_alive or self._told_draining or self._drained:
            return
        convicted = self._around.registry.died(self.replica, at)
        self._around.counters.quarantined(len(convicted))
        for revision in convicted:
            reason = self._around.registry.strikes.quarantined[revision].reason
            self._around.events.add(
                "quarantine", adapter=revision.name, revision=revision.digest, replica=self.id, reason=reason
            )

    def _note_drift(self, names: Collection[str], why: str) -> None:
        self._around.counters.drifted(self.id, len(names))
        shown = ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        self._around.events.add("drift", replica=self.id, reason=f"{why}: {shown}")

    # publishing

    def _serving_phase(self) -> tuple[Phase, str]:
        if self._pulse.silent:
            return Phase.DOWN, SILENT
        if self._drained:
            return Phase.DRAINING, "drained by an operator"
        if self._told_draining:
            return Phase.DRAINING, "it is shutting down"
        return Phase.READY, ""

    def _publish(self, record: Replica) -> None:
        self._around.registry.publish(record, self._around.clock())

    def _set_phase(self, phase: Phase, reason: str) -> None:
        old = self.replica.phase
        self._publish(replace(self.replica, phase=phase, reason=reason))
        if phase is not old:
            self._around.events.add("phase", replica=self.id, reason=f"{old} -> {phase}" + (reason and f": {reason}"))
