"""One pass of the controller: read the facts, take each rollout's next step, publish what follows; in one transaction.

There is no leader. Every control plane reconciles, and the database lets them do so one after the other: whoever gets
the news acts on it at once, and when one dies at any point, the transaction it was in never happened.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from serving.db import engine, events, idempotency, published, reports, signals, stages
from serving.db import facts as reading
from serving.domain import assignments, facts, rollouts, routing, wire
from serving.rollout import board

MAX_PASSES = 10
"""A rollout has fewer steps than this; more in a row would be a loop."""

FORGET_REPLICA_AFTER = timedelta(hours=1)
FORGET_GATEWAY_AFTER = timedelta(hours=24)


def utc_now() -> datetime:
    return datetime.now(UTC)


class Reconciler:
    """Not to be used by two threads at once: it keeps what it has read of immutable rows."""

    def __init__(
        self, *, database: engine.Database, limits: facts.Limits, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._database = database
        self._limits = limits
        self._clock = clock
        self._reader = reading.Reader(limits=limits)
        self._computed: tuple[object, wire.GatewayConfig] | None = None

    def run(self) -> board.Snapshot:
        """Reconcile until nothing moves any more.

        Raises:
            db.errors.DatabaseUnavailable: nothing, or only whole steps, were done.
        """
        for _ in range(MAX_PASSES):
            snapshot, moved = self.step()
            if not moved:
                return snapshot
        raise RuntimeError(f"rollouts still move after {MAX_PASSES} passes; their rules contradict each other")

    def step(self) -> tuple[board.Snapshot, bool]:
        """One transaction: at most one step of each rollout. Returns the outcome, and whether one has moved."""
        with self._database.exclusive() as session:
            world = self._reader.read(session, now=self._clock())
            reading.note_reconciled(session, now=world.now, observing_since=world.observing_since)
            moved = [_advance(session, rollout, world) for rollout in world.rollouts]
            if any(moved):
                signals.announce(session)
                session.flush()
                world = self._reader.read(session, now=world.now)
            return self._publish(session, world), any(moved)

    def housekeeping(self) -> None:
        """Drop what nobody can ask for any more."""
        now = self._clock()
        with self._database.exclusive() as session:
            idempotency.prune(session, now=now)
            if (now - reading.observing_since(session, now=now)) > FORGET_REPLICA_AFTER:
                reports.forget_silent(
                    session,
                    replicas_before=now - FORGET_REPLICA_AFTER,
                    gateways_before=now - FORGET_GATEWAY_AFTER,
                )
            in_force = [row.report.get("applied_revision") for row in reports.gateways(session)]
            published.prune_configs(session, keep=[revision for revision in in_force if revision])

    def _publish(self, session: Session, world: facts.Facts) -> board.Snapshot:
        wanted = assignments.wanted(world)
        pools = {version.manifest.pool for version in world.versions.values()}
        pools |= {replica.report.pool for replica in world.replicas} | world.generations.keys()
        by_pool: dict[str, wire.Assignment] = {}
        for pool in sorted(pools):
            refs = assignments.of_pool(pool, refs=wanted, facts=world)
            generation = published.save_assignment(session, pool, refs, now=world.now)
            by_pool[pool] = _assignment(pool, generation, refs, world)
        config = self._config_of(world, wanted)
        generations = {pool: assignment.generation for pool, assignment in by_pool.items()}
        if published.save_config(session, config, now=world.now) or generations != world.generations:
            signals.announce(session)
        return board.Snapshot(facts=world, assignments=by_pool, config=config)

    def _config_of(self, world: facts.Facts, wanted: set[wire.VersionRef]) -> wire.GatewayConfig:
        """Computed only when something that it depends on is new: most passes find nothing."""
        sources = (
            wanted,
            world.models,
            world.stages,
            [(rollout.id, rollout.state) for rollout in world.rollouts],
            # The reader gives the same object for the same report, and a tuple compares by identity first.
            [(replica.report, world.is_live(replica.last_seen)) for replica in world.replicas],
        )
        if self._computed is None or self._computed[0] != sources:
            self._computed = (sources, routing.config(world, wanted=wanted))
        return self._computed[1]


def _advance(session: Session, rollout: rollouts.Rollout, world: facts.Facts) -> bool:
    stage = stages.stage(session, rollout.model, rollout.stage)
    step = rollouts.advance(rollout, stage=stage, facts=world)
    record(session, rollout, stage, step, actor=events.CONTROLLER, now=world.now)
    return step.rollout.state is not rollout.state


def record(
    session: Session,
    rollout: rollouts.Rollout,
    stage: rollouts.stages.Stage,
    step: rollouts.Step,
    *,
    actor: str,
    now: datetime,
) -> None:
    """Store a step with its event. Call under ``exclusive``."""
    if step.rollout != rollout:
        stages.save_rollout(session, step.rollout)
    if step.stage != stage:
        stages.save_stage(session, step.stage)
    if step.change is not None:
        events.append(
            session,
            at=now,
            actor=actor,
            action=step.change.action,
            reason=step.change.reason,
            model=rollout.model,
            stage=rollout.stage,
            version=rollout.to_version,
            rollout=rollout.id,
            evidence=step.change.evidence,
        )


def _assignment(pool: str, generation: int, refs: list[wire.VersionRef], world: facts.Facts) -> wire.Assignment:
    versions = [
        wire.AssignedVersion(model=ref.model, version=ref.version, manifest=world.versions[ref].manifest)
        for ref in refs
    ]
    return wire.Assignment(pool=pool, generation=generation, versions=versions)
