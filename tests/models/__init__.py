"""Models of the protocols between processes, in Promela: ``spin`` searches all their runs, within bounds."""
