"""Alembic migrations of the state database, one module per released change of the schema."""
