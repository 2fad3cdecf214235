"""`python -m warmroute_backend.engine`: start the embedded engine by the name in the chart and the Compose files."""

from warmroute_lab.engine.__main__ import main

if __name__ == "__main__":
    main()
