"""Schedules on disk: the list files, `schedule.json`, the bundle, the planned timeline."""
