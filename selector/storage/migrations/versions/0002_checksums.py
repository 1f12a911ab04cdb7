"""Rows have checksums; those that are there already stay without."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("runs", "prompts", "events", "requests"):
        op.add_column(table, sa.Column("checksum", sa.BigInteger, nullable=True))
