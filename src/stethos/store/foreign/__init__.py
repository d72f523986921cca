"""Files of other tools that `stethos import` reads; none of their packages is needed."""
