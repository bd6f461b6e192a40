"""Pack and unpack on the device, and the head on packed rows."""
