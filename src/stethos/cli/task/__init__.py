"""What commands have in common beside what they show: targets, options, launching, capturing."""
