"""How fast Retarget is, beside its peers: `make bench`. One module a subject."""
