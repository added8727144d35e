//go:build !linux

package testredis

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
