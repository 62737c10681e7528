"""What stands between an attack and an oracle: the meter, the ledger of paid answers, and the canary."""
