"""The warmroute proxy: decisions in `core`, all I/O in `server`."""
