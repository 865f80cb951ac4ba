"""Which adapters take replicas down: two unexpected deaths with the same suspect, and that revision is quarantined.

Suspects of a death are the revisions that had a request without a first byte, or were being loaded there, in its last ten
seconds; the latter count only for deaths that have none of the former. A replica that is killed from outside
has such requests too, so these clear: an answer with the revision on the dying replica after the first of the failed
requests was sent, an answer (or a load, for who was being loaded) anywhere since an earlier death, being held by another
replica (for who was being loaded), requests sent before that death, and many suspects in common, which point to the
host. A quarantine ends with other bytes, an operator's word, or a trial request that goes well: one at a time, the first
after a quarter of an hour.
"""

from collections import deque
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from gateway.core.adapters import Revision

LAST_SECONDS = 10.0
WITHIN = 600.0  # seconds between two deaths that belong together
TRIAL_AFTER = 900.0  # seconds
MANY = 4  # more suspects in common than these prove nothing
KEPT = 1000  # failures noted of one replica, and deaths

Answers = Mapping[Revision, float]  # when a revision was last answered well on one replica


@dataclass(frozen=True, slots=True)
class Quarantine:
    reason: str
    trial_at: float  # monotonic seconds
    running: bool = False  # the trial request


class Failure(NamedTuple):
    """A request, or a load, that broke off or was answered 500 before a first byte."""

    revision: Revision
    sent_at: float
    at: float
    loading: bool = False


class Evidence(NamedTuple):
    """What speaks for a revision: answers of the replica that died, of the others, and what the others hold."""

    there: Answers = MappingProxyType({})
    elsewhere: tuple[Answers, ...] = ()
    held: Set[Revision] = frozenset()


@dataclass(frozen=True, slots=True)
class Death:
    """`running` (when the last failed request was sent) and `loading` are the suspects that have not done well since."""

    at: float  # when the first of its requests broke off; it is noticed later
    replica: str
    running: dict[Revision, float] = field(default_factory=dict)
    loading: set[Revision] = field(default_factory=set)
    had_runners: bool = False  # cleared since or not: what runs is likelier to kill than what is being loaded

    @property
    def suspects(self) -> set[Revision]:
        return self.running.keys() | self.loading

    def clear(self, revision: Revision) -> None:
        self.running.pop(revision, None)
        self.loading.discard(revision)

    def common(self, earlier: "Death") -> set[Revision]:
        """Who is suspected of both."""
        running = {r for r, sent_at in self.running.items() if sent_at > earlier.at and r in earlier.running}
        return running if self.had_runners or earlier.had_runners else self.loading & earlier.loading


class Strikes:
    """Times are monotonic seconds."""

    def __init__(self, trial_after: float = TRIAL_AFTER) -> None:
        self.trial_after = trial_after
        self.quarantined: dict[Revision, Quarantine] = {}
        self._failures: dict[str, deque[Failure]] = {}
        self._deaths: deque[Death] = deque(maxlen=KEPT)

    def __repr__(self) -> str:
        return f"<Strikes {len(self._deaths)} deaths, {len(self.quarantined)} quarantined>"

    # what happens

    def failed(self, replica: str, failure: Failure) -> None:
        self._failures.setdefault(replica, deque(maxlen=KEPT)).append(failure)

    def died(self, replica: str, at: float, loading: Collection[Revision], known: Evidence) -> list[Revision]:
        """A replica died unexpectedly; returns what is quarantined."""
        earlier = [death for death in self._deaths if at - death.at <= WITHIN]
        for answers in (known.there, *known.elsewhere):
            for death in earlier:
                for revision in [r for r in death.suspects if answers.get(r, 0.0) > death.at]:
                    death.clear(revision)
        death = self._death(replica, at, loading, known)
        self._deaths = deque([*earlier, death], maxlen=KEPT)
        convicted = set()
        for before in earlier:
            common = death.common(before)
            if len(common) > MANY:
                continue
            deaths = f"{before.replica} and {replica} died" if before.replica != replica else f"{replica} died twice"
            for revision in common - self.quarantined.keys():
                convicted.add(revision)
                self.quarantined[revision] = Quarantine(f"it was running or being loaded when {deaths}", at + self.trial_after)
        for revision in death.suspects & self.quarantined.keys():  # a trial that went wrong
            self.quarantined[revision] = replace(self.quarantined[revision], trial_at=at + self.trial_after, running=False)
        return sorted(convicted)

    def _death(self, replica: str, at: float, loading: Collection[Revision], known: Evidence) -> Death:
        noted = [failure for failure in self._failures.pop(replica, ()) if failure.at >= at - LAST_SECONDS]
        loads = {failure.revision for failure in noted if failure.loading}
        sent: dict[Revision, list[float]] = {}
        for failure in noted:
            if not failure.loading:
                sent.setdefault(failure.revision, []).append(failure.sent_at)
        running = {revision: max(times) for revision, times in sent.items() if known.there.get(revision, 0.0) <= min(times)}
        first = min((failure.at for failure in noted), default=at)
        return Death(min(at, first), replica, running, (loads | set(loading)) - known.held, bool(running))

    def forget_replica(self, replica: str) -> None:
        self._failures.pop(replica, None)

    # what clears

    def loaded(self, revision: Revision) -> None:
        """It was loaded well: who was being loaded as a replica died is suspected no longer."""
        for death in self._deaths:
            death.loading.discard(revision)

    def release(self, revision: Revision) -> bool:
        """It may be used again: whether it was quarantined. Earlier deaths are not held against it."""
        for death in self._deaths:
            death.clear(revision)
        return self.quarantined.pop(revision, None) is not None

    def keep(self, known: Collection[Revision]) -> None:
        """Only these revisions exist still."""
        self.quarantined = {r: q for r, q in self.quarantined.items() if r in known}

    # the trial

    def begin_trial(self, revision: Revision, now: float) -> bool:
        """Whether this request may be the one that tries; `end_trial` or `release` must follow."""
        quarantine = self.quarantined.get(revision)
        if quarantine is None or quarantine.running or now < quarantine.trial_at:
            return False
        self.quarantined[revision] = replace(quarantine, running=True)
        return True

    def end_trial(self, revision: Revision) -> None:
        """It ended without an answer: another request may try."""
        quarantine = self.quarantined.get(revision)
        if quarantine is not None:
            self.quarantined[revision] = replace(quarantine, running=False)
