"""The one door to torch's private names, and to what differs between its versions.

Each module here wraps one private corner of torch behind a small public function. This folder
knows torch alone: nothing of the package is imported here.
"""
