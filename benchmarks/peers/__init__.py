"""Programs that run in the peers' own environments: an order a line comes in, a number goes out."""
