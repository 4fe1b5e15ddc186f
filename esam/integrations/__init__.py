"""Sharpness-aware steps inside other people's trainers; each adapter is an optional extra and is imported by name."""
