"""The commands: one file each, which parses options, makes one library call and prints."""
