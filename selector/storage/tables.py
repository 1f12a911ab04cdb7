"""Tables of the state database.

A run's state is a fold of its ``events``, in order of ``seq``. Pools are kept as rows, since they belong to no step.
``requests`` remembers which request_id was answered with what, so that a repeated request is applied once.
``checksum`` is that of the row (``selector.storage.checksums``), NULL in rows that are older than checksums.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run_id", sa.Text, nullable=False, unique=True),
    sa.Column("explicit_config", sa.Text, nullable=False),
    sa.Column("config", sa.Text, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
    # False while a fork is being copied; such a run does not exist yet.
    sa.Column("ready", sa.Boolean, nullable=False),
    # The embedding space of the run's prompts, empty before the first embedding.
    sa.Column("space", sa.Text, nullable=False),
    sa.Column("width", sa.Integer, nullable=False),
    # The latest rewind; the replay store catches up with it at start-up.
    sa.Column("rewind_epoch", sa.Integer, nullable=False),
    sa.Column("rewind_step", sa.BigInteger, nullable=False),
    sa.Column("forked_from", sa.Text, nullable=False),
    sa.Column("forked_at", sa.BigInteger, nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=True),
    sqlite_autoincrement=True,
)

prompts = sa.Table(
    "prompts",
    metadata,
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
    sa.Column("checksum", sa.BigInteger, nullable=True),
    # 0 in rows that are older than the search for twins.
    sa.Column("twin_group", sa.BigInteger, nullable=False, server_default="0"),
    sqlite_with_rowid=False,
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("run", sa.Integer, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    # NULL for events that belong to no step and survive a rewind.
    sa.Column("step", sa.BigInteger, nullable=True),
    sa.Column("purpose", sa.Integer, nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    # Identifies the arguments, so that a repeated call can be told from a different one.
    sa.Column("fingerprint", sa.LargeBinary, nullable=False),
    sa.Column("columns", sa.LargeBinary, nullable=False),
    sa.Column("meta", sa.Text, nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=True),
    sqlite_with_rowid=False,
)
sa.Index("events_step", events.c.run, events.c.step)
sa.Index(
    "selections_key",
    events.c.run,
    events.c.step,
    events.c.purpose,
    events.c.round,
    unique=True,
    sqlite_where=events.c.kind == "selection",
)

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run", sa.Integer, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column("method", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.LargeBinary, nullable=False),
    sa.Column("response", sa.LargeBinary, nullable=False),
    # The step the request belonged to; forgotten with it by a rewind.
    sa.Column("step", sa.BigInteger, nullable=True),
    sa.Column("checksum", sa.BigInteger, nullable=True),
    sqlite_autoincrement=True,
)
sa.Index("requests_key", requests.c.run, requests.c.request_id, unique=True)

# Deletions outlive their run, so that a repeated DeleteRun is answered alike and leaves a new run of that id alone.
deletions = sa.Table(
    "deletions",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sqlite_autoincrement=True,
)
# Two callers that may not see each other's runs may use the same id.
sa.Index("deletions_key", deletions.c.request_id, deletions.c.run_id, unique=True)
