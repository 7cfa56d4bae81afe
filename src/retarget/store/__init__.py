"""All SQL: what the system knows, in SQLite or PostgreSQL. One module a noun.

`engine` opens a database and brings it to the present schema; `Jobs`, `Outputs`, `Targets` and
`Environments` each take that engine and give back values of the core.
"""
