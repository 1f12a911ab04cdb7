"""How well difficulty is predicted on given data: pass rates from a file, or a run's own exported history."""
