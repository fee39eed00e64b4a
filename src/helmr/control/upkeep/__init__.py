"""Periodic duties: what gives progress when every notice was lost and every process was killed (I6)."""
