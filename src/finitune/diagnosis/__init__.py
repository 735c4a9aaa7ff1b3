"""After a run: its recording, its logs or what somebody writes about it -> ranked causes."""
