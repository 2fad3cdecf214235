"""The `warmroute` command. It composes sdk, proxy, backend and lab. Of these, only the lab imports a part of it: what
reads options, prints tables and starts processes.

It holds no logic of a server: commands read options, start processes, and print results.

main        the table of subcommands, and how one is run
arguments   readers of option values
replay      `warmroute replay`
plan        `warmroute plan`
launch      `warmroute launch`
doctor      `warmroute doctor`
ladder      `warmroute ladder`: where cached tokens were lost
own_rows    the rows of ledgers in folders
usd_rates   rates as the command line takes them
run         `warmroute run`: a coding agent that is installed here, on a proxy
proxy       `warmroute proxy`: one proxy, or the check of its file
ask         `warmroute ask`: an answer of the admin port as it is
engines     `warmroute engines`: list, drain and flip the engines of a running proxy
directory   `warmroute tenants`, `warmroute keys`: tenants and API keys in that database
reload      `warmroute reload`: let a running proxy apply its config file
prices      `warmroute prices`: price books of the config and of the database
ledger      `warmroute ledger`: the tables of the database
ledger_address where the database of a command is
restore     `warmroute ledger restore`: a dump of pg_dump put back
reconcile   `warmroute ledger reconcile`: receipts against the engines' own counters
usage       `warmroute usage`: what turns cost
top         `warmroute top`: the fleet in a terminal
tables      tables that fit the width of the terminal
receipts    `warmroute receipts`: the newest turns, and one of them in words
asking      whom these ask: a proxy by its config, an `up` fleet, or what the environment names
past        what a fleet that has ended has served
api         small questions to a proxy
running     where a running fleet is reached, who uses it, and which ports it keeps
installed   how this copy was installed, for hints
processes   child processes: start, wait, stop
state       the folder with secret, keys and logs
"""
