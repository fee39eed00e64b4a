"""Authoring: what Agent code is written with. Standard library only; pydantic is imported when a schema needs it [A9]."""
