"""Official files of the data sets, in a directory that the user names. Nothing is ever downloaded."""
