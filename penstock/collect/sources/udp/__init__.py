"""Sources that listen for datagrams: any (`source`), and lines of metrics (`metrics`). What is lost is counted."""
