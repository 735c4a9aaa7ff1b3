"""The diagnosis of logs: attempts -> signs -> incidents."""
