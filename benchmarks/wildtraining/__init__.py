"""Known bugs of training programs, each with its corrected twin, run under `stethos run` as they are."""
