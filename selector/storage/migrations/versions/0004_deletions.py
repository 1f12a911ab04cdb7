"""Deletions are known by run and request, not by request alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite cannot drop the constraint of a column, so the rows move.
    op.rename_table("deletions", "deletions_before")
    op.create_table(
        "deletions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("deletions_key", "deletions", ["request_id", "run_id"], unique=True)
    op.execute("INSERT INTO deletions (id, request_id, run_id) SELECT id, request_id, run_id FROM deletions_before")
    op.drop_table("deletions_before")
