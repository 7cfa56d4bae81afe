"""All SQL, for SQLite and PostgreSQL. One module per noun.

`engine` opens a database and upgrades it to the current schema. Classes such as `Jobs` and
`Targets` take that engine and return values of the core; `store.Store` holds one of each.
"""
