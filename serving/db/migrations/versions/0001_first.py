"""The first schema: models, versions, stages, rollouts, pools, reports, configurations, events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from serving.db import types

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "controller",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("reconciled_at", types.UtcDateTime(), nullable=False),
        sa.Column("observing_since", types.UtcDateTime(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_controller_single_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_controller")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", types.UtcDateTime(), nullable=False),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("action", sa.String(length=255), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=True),
        sa.Column("stage", sa.String(length=255), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("rollout", sa.String(length=255), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("evidence", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index("ix_events_model_id", "events", ["model", "id"], unique=False)
    op.create_index("ix_events_rollout_id", "events", ["rollout"], unique=False)
    op.create_table(
        "gateway_configs",
        sa.Column("revision", sa.String(length=255), nullable=False),
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", types.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_gateway_configs")),
        sa.UniqueConstraint("sequence", name=op.f("uq_gateway_configs_sequence")),
    )
    op.create_table(
        "gateways",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("report", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("fingerprint", sa.String(length=255), nullable=False),
        sa.Column("last_seen", types.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_gateways")),
    )
    op.create_table(
        "idempotent_requests",
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("path", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=255), nullable=False),
        sa.Column("created_at", types.UtcDateTime(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("key", "path", name=op.f("pk_idempotent_requests")),
    )
    op.create_index("ix_idempotent_requests_created_at", "idempotent_requests", ["created_at"], unique=False)
    op.create_table(
        "models",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_at", types.UtcDateTime(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.Column("last_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_models")),
    )
    op.create_table(
        "pools",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("generation", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("versions", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("changed_at", types.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_pools")),
    )
    op.create_table(
        "replicas",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("pool", sa.String(length=255), nullable=False),
        sa.Column("report", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("fingerprint", sa.String(length=255), nullable=False),
        sa.Column("last_seen", types.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_replicas")),
    )
    op.create_table(
        "versions",
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(length=255), nullable=False),
        sa.Column("pool", sa.String(length=255), nullable=False),
        sa.Column("manifest", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", types.UtcDateTime(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["model"], ["models.name"], name=op.f("fk_versions_model")),
        sa.PrimaryKeyConstraint("model", "version", name=op.f("pk_versions")),
        sa.UniqueConstraint("model", "digest", name="uq_versions_model_digest"),
    )
    op.create_table(
        "rollouts",
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("stage", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=255), nullable=False),
        sa.Column("strategy", sa.String(length=255), nullable=False),
        sa.Column("from_version", sa.Integer(), nullable=True),
        sa.Column("to_version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=255), nullable=False),
        sa.Column("state_since", types.UtcDateTime(), nullable=False),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", types.UtcDateTime(), nullable=False),
        sa.Column("shifted_at", types.UtcDateTime(), nullable=True),
        sa.Column("routed_at", types.UtcDateTime(), nullable=True),
        sa.Column("before", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("progress", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("request_key", sa.String(length=255), nullable=True),
        sa.ForeignKeyConstraint(["model", "to_version"], ["versions.model", "versions.version"], name="fk_rollouts_to"),
        sa.ForeignKeyConstraint(["model"], ["models.name"], name=op.f("fk_rollouts_model")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
        sa.UniqueConstraint("request_key", name=op.f("uq_rollouts_request_key")),
    )
    op.create_index("ix_rollouts_model_stage_id", "rollouts", ["model", "stage", "id"], unique=False)
    op.create_index("ix_rollouts_shifted_at", "rollouts", ["shifted_at"], unique=False)
    op.create_index(
        "ux_rollouts_active",
        "rollouts",
        ["model", "stage"],
        unique=True,
        sqlite_where=sa.text("state IN ('pending', 'loading', 'shifting')"),
        postgresql_where=sa.text("state IN ('pending', 'loading', 'shifting')"),
    )
    op.create_table(
        "stages",
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("stable", sa.Integer(), nullable=True),
        sa.Column("candidate", sa.Integer(), nullable=True),
        sa.Column("history", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("replaced_at", types.UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["model", "candidate"], ["versions.model", "versions.version"], name="fk_stages_candidate"
        ),
        sa.ForeignKeyConstraint(["model", "stable"], ["versions.model", "versions.version"], name="fk_stages_stable"),
        sa.ForeignKeyConstraint(["model"], ["models.name"], name=op.f("fk_stages_model")),
        sa.PrimaryKeyConstraint("model", "name", name=op.f("pk_stages")),
    )
    _make_events_append_only()


def _make_events_append_only() -> None:
    """An audit trail that the application itself could rewrite would prove nothing."""
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER events_no_{verb.lower()} BEFORE {verb} ON events "
                "BEGIN SELECT RAISE(ABORT, 'events are append-only'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION slipway_events_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'events are append-only'; END $$"
    )
    op.execute(
        "CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON events "
        "FOR EACH STATEMENT EXECUTE FUNCTION slipway_events_append_only()"
    )
