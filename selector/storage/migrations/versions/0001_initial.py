"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False, unique=True),
        sa.Column("explicit_config", sa.Text, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("ready", sa.Boolean, nullable=False),
        sa.Column("space", sa.Text, nullable=False),
        sa.Column("width", sa.Integer, nullable=False),
        sa.Column("rewind_epoch", sa.Integer, nullable=False),
        sa.Column("rewind_step", sa.BigInteger, nullable=False),
        sa.Column("forked_from", sa.Text, nullable=False),
        sa.Column("forked_at", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "prompts",
        sa.Column("run", sa.Integer, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("idx", sa.Integer, primary_key=True),
        sa.Column("prompt_id", sa.Text, nullable=False),
        sa.Column("content_hash", sa.LargeBinary, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("embedding_row", sa.BigInteger, nullable=False),
        sa.Column("domain", sa.Text, nullable=False),
        sa.Column("token_count", sa.Integer, nullable=False),
        sa.Column("prior_rate", sa.Float, nullable=True),
        sa.Column("prior_trials", sa.Integer, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("status_reason", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "events",
        sa.Column("run", sa.Integer, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=True),
        sa.Column("purpose", sa.Integer, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("fingerprint", sa.LargeBinary, nullable=False),
        sa.Column("columns", sa.LargeBinary, nullable=False),
        sa.Column("meta", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("events_step", "events", ["run", "step"])
    op.create_index(
        "selections_key",
        "events",
        ["run", "step", "purpose", "round"],
        unique=True,
        sqlite_where=sa.text("kind = 'selection'"),
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run", sa.Integer, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.LargeBinary, nullable=False),
        sa.Column("response", sa.LargeBinary, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=True),
        sqlite_autoincrement=True,
    )
    op.create_index("requests_key", "requests", ["run", "request_id"], unique=True)
    op.create_table(
        "deletions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("request_id", sa.Text, nullable=False, unique=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
