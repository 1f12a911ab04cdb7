"""Prompts have a twin group; those that are there already have no twins."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("prompts", sa.Column("twin_group", sa.BigInteger, nullable=False, server_default="0"))
