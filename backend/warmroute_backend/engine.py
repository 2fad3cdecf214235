"""`python -m warmroute_backend.engine`: the name by which chart and Compose files start the embedded engine."""

from warmroute_lab.engine.__main__ import main

if __name__ == "__main__":
    main()
