//! What is left of a job on its node when the job has ended.
#![forbid(unsafe_code)]
