"""Sources that listen for datagrams: arbitrary datagrams (`source`), and lines of metrics (`metrics`). Lost datagrams
are counted."""
