// Package quota limits directory trees by the project quota of their file
// system: ext4 and XFS count blocks and inodes per project id, new files
// inherit the id of the directory that they are made in, and a write beyond
// the limit fails with EDQUOT (ENOSPC on XFS) for the writer alone.
//
// It takes a file system made with project ids (ext4: -O project,quota) and
// mounted with prjquota, CAP_SYS_ADMIN to set limits, and Linux 5.14. Root is
// not limited while it has CAP_SYS_RESOURCE. The owner of a directory may give
// it another project id: who is to be held by a limit must be denied the ioctl
// FS_IOC_FSSETXATTR, or live in a user namespace, where the kernel refuses it.
package quota
