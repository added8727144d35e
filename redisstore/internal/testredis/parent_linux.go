package testredis

import "syscall"

// endWithParent has a server end even when the test process is killed or panics, which
// runs no cleanup.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
