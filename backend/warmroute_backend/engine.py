"""`python -m warmroute_backend.engine`: the embedded engine, by the name that the chart and the Compose files use."""

from warmroute_lab.engine.__main__ import main

if __name__ == "__main__":
    main()
