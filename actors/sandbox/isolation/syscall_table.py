"""What the seccomp filter lets through, as data: each system call, the arguments that are checked, and the reason.

``syscalls.program`` makes the filter of these tables, and ``docs/make_sandbox.py`` the table in docs/sandbox.md.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from actors.sandbox.isolation.kernel import FIRST_SLOT_FD
from actors.sandbox.isolation.syscall_checks import (
    AtLeast,
    Check,
    MaskedOneOf,
    Null,
    OneOf,
    Pretended,
    When,
    Without,
)

SIGKILL, SIGCHLD, SIGCONT = 9, 17, 18


@dataclass(frozen=True, slots=True)
class SyscallGroup:
    """System calls with one rule, whatever their arguments: ``name:number on x86-64:number on arm64``."""

    reason: str
    calls: str


@dataclass(frozen=True, slots=True)
class Checked:
    """System calls that are allowed with some arguments only."""

    reason: str
    calls: str
    checks: tuple[Check, ...]


UNDER_ANY_ARGUMENTS = (
    SyscallGroup(
        "Read and write open files; positions, sizes, copies",
        "read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70 "
        "lseek:8:62 "
        "sendfile:40:71 copy_file_range:326:285 ftruncate:77:46 fallocate:285:47",
    ),
    SyscallGroup(
        "Find, make, rename and remove files: what may be reached, the read-only root or Landlock decides",
        "access:21: faccessat:269:48 faccessat2:439:439 creat:85: mkdir:83: mkdirat:258:34 mknod:133: mknodat:259:33 "
        "link:86: linkat:265:37 symlink:88: symlinkat:266:36 readlink:89: readlinkat:267:78 rename:82: renameat:264:38 "
        "renameat2:316:276 rmdir:84: unlink:87: unlinkat:263:35 chdir:80:49 fchdir:81:50 getcwd:79:17 "
        "getdents:78: getdents64:217:61 umask:95:166",
    ),
    SyscallGroup(
        "Look at files",
        "stat:4: lstat:6: fstat:5:80 newfstatat:262:79 statx:332:291 statfs:137:43 fstatfs:138:44 getxattr:191:8 "
        "lgetxattr:192:9 "
        "fgetxattr:193:10 listxattr:194:11 llistxattr:195:12 flistxattr:196:13",
    ),
    SyscallGroup(
        "Descriptors of the call's own processes: copy and close them, pipes, event counters",
        "close:3:57 close_range:436:436 dup:32:23 dup2:33: dup3:292:24 pipe:22: pipe2:293:59 eventfd:284: "
        "eventfd2:290:19",
    ),
    SyscallGroup(
        "Wait for descriptors",
        "poll:7: ppoll:271:73 select:23: pselect6:270:72 epoll_create:213: epoll_create1:291:20 epoll_ctl:233:21 "
        "epoll_wait:232: "
        "epoll_pwait:281:22 epoll_pwait2:441:441",
    ),
    SyscallGroup("Names and ends of a socket pair", "shutdown:48:210 getsockname:51:204 getpeername:52:205"),
    SyscallGroup(
        "Memory of the process",
        "brk:12:214 mprotect:10:226 mremap:25:216 munmap:11:215 get_mempolicy:239:236",
    ),
    SyscallGroup(
        "Start programs and processes, wait for their end, end",
        "execve:59:221 fork:57: vfork:58: wait4:61:260 waitid:247:95 exit:60:93 exit_group:231:94 pidfd_open:434:434 "
        "setpgid:109:154",
    ),
    SyscallGroup(
        "Threads, as libc starts and ends them",
        "set_tid_address:218:96 set_robust_list:273:99 get_robust_list:274:100 rseq:334:293 gettid:186:178",
    ),
    SyscallGroup(
        "Handle signals and wait for them; alarms, which send SIGALRM to the process itself",
        "rt_sigaction:13:134 rt_sigpending:127:136 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigsuspend:130:133 "
        "rt_sigtimedwait:128:137 sigaltstack:131:132 signalfd:282: signalfd4:289:74 pause:34: restart_syscall:219:128 "
        "alarm:37: "
        "getitimer:36:102 setitimer:38:103",
    ),
    SyscallGroup(
        "Clocks and waiting",
        "clock_getres:229:114 clock_gettime:228:113 clock_nanosleep:230:115 gettimeofday:96:169 nanosleep:35:101 "
        "time:201: "
        "timerfd_create:283:85 timerfd_gettime:287:87 timerfd_settime:286:86",
    ),
    SyscallGroup(
        "Numbers and limits of the call's own processes; what the machine is",
        "getpid:39:172 getppid:110:173 getpgid:121:155 getpgrp:111: getsid:124:156 getuid:102:174 geteuid:107:175 "
        "getgid:104:176 "
        "getegid:108:177 getresuid:118:148 getresgid:120:150 getgroups:115:158 getrlimit:97:163 getrusage:98:165 "
        "times:100:153 getpriority:140:141 getcpu:309:168 sysinfo:99:179 uname:63:160",
    ),
    SyscallGroup(
        "Look at scheduling, as libraries do that start threads",
        "sched_get_priority_max:146:125 sched_get_priority_min:147:126 sched_getaffinity:204:123 sched_getattr:315:275 "
        "sched_getparam:143:121 sched_getscheduler:145:120 sched_rr_get_interval:148:127 sched_yield:24:124",
    ),
    SyscallGroup(
        "Give up rights: users and capabilities, of which a call has one and none",
        "capget:125:90 capset:126:91 setuid:105:146 setgid:106:144 setreuid:113:145 setregid:114:143 setresuid:117:147 "
        "setresgid:119:149 setfsuid:122:151 setfsgid:123:152",
    ),
    SyscallGroup("Random numbers from the kernel", "getrandom:318:278"),
    SyscallGroup(
        "Landlock: a call may confine itself further",
        "landlock_create_ruleset:444:444 landlock_add_rule:445:445 landlock_restrict_self:446:446",
    ),
)

IGNORED = SyscallGroup(
    "Nothing of a call outlives it, and no call is to make the host's disk flush its caches: reports success, does "
    "nothing",
    "fsync:74:82 fdatasync:75:83 msync:26:227 sync_file_range:277:84",
)
MARKING = SyscallGroup(
    "Modes, owners and times of the call's own files. At `filtered` they report success and do nothing: Landlock does "
    "not cover them, "
    "and the executor's user owns more than its calls may change",
    "chmod:90: fchmod:91:52 fchmodat:268:53 fchmodat2:452:452 chown:92: fchown:93:55 lchown:94: fchownat:260:54 "
    "utime:132: utimes:235: "
    "futimesat:261: utimensat:280:88",
)
SHORTENING = SyscallGroup(
    "Shorten files by their path. Refused at `filtered`, as Landlock before Linux 6.2 does not cover it: open the file "
    "and use `ftruncate`",
    "truncate:76:45",
)
OPENING = {"O_RDONLY": 0, "O_WRONLY": 1, "O_RDWR": 2, "O_WRONLY|O_TRUNC": 0x201, "O_RDWR|O_TRUNC": 0x202}
"""How to open a file. One that is opened to be read can be shortened too, which Landlock before Linux 6.2 does not
see."""
BESIDES = {"any other flag": 0xFFFFFDFC}
RESOURCES = {
    "CPU": 0, "FSIZE": 1, "DATA": 2, "STACK": 3, "RSS": 5, "NPROC": 6, "NOFILE": 7, "MEMLOCK": 8, "AS": 9, "LOCKS": 10,
    "SIGPENDING": 11, "MSGQUEUE": 12, "NICE": 13, "RTPRIO": 14, "RTTIME": 15,
}  # fmt: skip
"""All limits but CORE, whose value has the kernel start no program of the host's for a process that crashes."""
WRITE_THROUGH = {"O_DSYNC": 0x1000, "O_ASYNC": 0x2000, "O_SYNC": 0x100000}
SOCKET_TYPES = {
    name + more: kind | flags
    for name, kind in (("SOCK_STREAM", 1), ("SOCK_SEQPACKET", 5))
    for more, flags in (
        ("", 0),
        ("|SOCK_NONBLOCK", 0x800),
        ("|SOCK_CLOEXEC", 0x80000),
        ("|SOCK_NONBLOCK|SOCK_CLOEXEC", 0x80800),
    )
}
FCNTLS = {
    "F_DUPFD": 0,
    "F_GETFD": 1,
    "F_SETFD": 2,
    "F_GETFL": 3,
    "F_SETFL": 4,
    "F_GETLK": 5,
    "F_SETLK": 6,
    "F_SETLKW": 7,
    "F_DUPFD_QUERY": 1027,
    "F_DUPFD_CLOEXEC": 1030,
    "F_GETPIPE_SZ": 1032,
}
PRCTLS = {
    "PR_SET_PDEATHSIG": 1,
    "PR_GET_PDEATHSIG": 2,
    "PR_GET_DUMPABLE": 3,
    "PR_SET_NAME": 15,
    "PR_GET_NAME": 16,
    "PR_SET_SECCOMP": 22,
    "PR_SET_NO_NEW_PRIVS": 38,
    "PR_GET_NO_NEW_PRIVS": 39,
    "PR_SET_VMA": 0x53564D41,
}
RECORD_LOCKS = {name: FCNTLS[name] for name in ("F_SETLK", "F_SETLKW")}
IOCTLS = {
    "TCGETS": 0x5401,
    "TIOCGWINSZ": 0x5413,
    "FIONREAD": 0x541B,
    "FIONBIO": 0x5421,
    "FIONCLEX": 0x5450,
    "FIOCLEX": 0x5451,
}
ADVICE = {
    "NORMAL": 0,
    "RANDOM": 1,
    "SEQUENTIAL": 2,
    "WILLNEED": 3,
    "DONTNEED": 4,
    "FREE": 8,
    "REMOVE": 9,
    "DONTFORK": 10,
    "DOFORK": 11,
    "HUGEPAGE": 14,
    "NOHUGEPAGE": 15,
    "DONTDUMP": 16,
    "DODUMP": 17,
    "WIPEONFORK": 18,
    "KEEPONFORK": 19,
    "POPULATE_READ": 22,
    "POPULATE_WRITE": 23,
    "GUARD_INSTALL": 102,
    "GUARD_REMOVE": 103,
}
FUTEXES = {"WAIT": 0, "WAKE": 1, "REQUEUE": 3, "CMP_REQUEUE": 4, "WAKE_OP": 5, "WAIT_BITSET": 9, "WAKE_BITSET": 10}
NAMESPACES = {
    "CLONE_NEWNS": 0x20000,
    "CLONE_NEWCGROUP": 0x2000000,
    "CLONE_NEWUTS": 0x4000000,
    "CLONE_NEWIPC": 0x8000000,
    "CLONE_NEWUSER": 0x10000000,
    "CLONE_NEWPID": 0x20000000,
    "CLONE_NEWNET": 0x40000000,
}
OPTIONS = {
    "SO_TYPE": 3,
    "SO_ERROR": 4,
    "SO_SNDBUF": 7,
    "SO_RCVBUF": 8,
    "SO_KEEPALIVE": 9,
    "SO_LINGER": 13,
    "SO_RCVTIMEO": 20,
    "SO_SNDTIMEO": 21,
    "SO_ACCEPTCONN": 30,
    "SO_PROTOCOL": 38,
    "SO_DOMAIN": 39,
}
SETTABLE = {name: OPTIONS[name] for name in ("SO_SNDBUF", "SO_RCVBUF", "SO_KEEPALIVE", "SO_RCVTIMEO", "SO_SNDTIMEO")}
OUT_OF_BAND = {"MSG_OOB": 1}
SOL_SOCKET = {"SOL_SOCKET": 1}
X86_THREADS = {
    "ARCH_SET_GS": 0x1001,
    "ARCH_SET_FS": 0x1002,
    "ARCH_GET_FS": 0x1003,
    "ARCH_GET_GS": 0x1004,
    "ARCH_GET_XCOMP_SUPP": 0x1021,
    "ARCH_GET_XCOMP_PERM": 0x1022,
    "ARCH_REQ_XCOMP_PERM": 0x1023,
}
NO_FLAGS = {"0": 0}

CHECKED = (
    Checked(
        "Open files; nothing that makes each write wait for the disk, sends signals, or shortens what is opened to be "
        "read",
        "open:2:",
        (Without(1, WRITE_THROUGH), MaskedOneOf(1, BESIDES, OPENING)),
    ),
    Checked("As open", "openat:257:56", (Without(2, WRITE_THROUGH), MaskedOneOf(2, BESIDES, OPENING))),
    Checked(
        "Map memory and files. Huge pages that the host has reserved are for those it reserved them for",
        "mmap:9:222",
        (Without(3, {"MAP_HUGETLB": 0x40000}),),
    ),
    Checked(
        "Locks of threads and of multiprocessing; not the operations that lend priorities",
        "futex:202:98",
        (MaskedOneOf(1, {"PRIVATE_FLAG": 128, "CLOCK_REALTIME": 256}, FUTEXES),),
    ),
    Checked(
        "Advice about the call's own memory; nothing that pushes shared pages out, merges pages with those of others, "
        "or fakes faults",
        "madvise:28:233",
        (OneOf(2, ADVICE),),
    ),
    Checked(
        "Descriptor flags. Record locks, which SQLite sets, do nothing: whoever closes the same file, on the whole "
        "host, walks the list of "
        "all of them. No leases, notices and owners, which reach who opens the same file; no size of pipes, of which "
        "the user has so much "
        "in all",
        "fcntl:72:25",
        (OneOf(1, FCNTLS), Pretended(1, RECORD_LOCKS), When(1, "F_SETFL", 4, Without(2, {"O_ASYNC": 0x2000}))),
    ),
    Checked(
        "Threads and processes, in no new namespace, with no other parent, with no other signal at their end than "
        "SIGCHLD",
        "clone:56:220",
        (
            Without(0, {"CLONE_PTRACE": 0x2000, "CLONE_PARENT": 0x8000, **NAMESPACES}),
            MaskedOneOf(0, {"any other flag": 0xFFFFFF00}, {"no signal at its end": 0, "SIGCHLD": SIGCHLD}),
        ),
    ),
    Checked(
        "Whether there is a terminal, what can be read, whether to wait, whether to close at exec",
        "ioctl:16:29",
        (OneOf(1, IOCTLS, errno.ENOTTY),),
    ),
    Checked(
        "Names, and what the child needs while it seals itself off",
        "prctl:157:167",
        (OneOf(0, PRCTLS), When(0, "PR_SET_PDEATHSIG", 1, OneOf(1, {"SIGKILL": SIGKILL}))),
    ),
    Checked(
        "Limits of the calling process alone, but that of core dumps: at 1 the kernel starts no program for them",
        "prlimit64:302:261",
        (OneOf(0, {"itself": 0}), When(1, "RLIMIT_CORE", 4, Null(2))),
    ),
    Checked("As prlimit64", "setrlimit:160:164", (OneOf(0, RESOURCES),)),
    Checked(
        "Two ends that only the call's processes have. A datagram socket could send to any other by a name",
        "socketpair:53:199",
        (OneOf(0, {"AF_UNIX": 1}), OneOf(1, SOCKET_TYPES)),
    ),
    Checked("Send to the other end, and to no address", "sendto:44:206", (Null(4), Without(3, OUT_OF_BAND))),
    Checked(
        "Talk through a socket pair: asyncio, multiprocessing. Not out of band, which only attackers do there",
        "sendmsg:46:211 recvmsg:47:212",
        (Without(2, OUT_OF_BAND),),
    ),
    Checked("As sendmsg", "recvfrom:45:207 recvmmsg:299:243 sendmmsg:307:269", (Without(3, OUT_OF_BAND),)),
    Checked("Sizes and timeouts of a socket pair", "setsockopt:54:208", (OneOf(1, SOL_SOCKET), OneOf(2, SETTABLE))),
    Checked("What a descriptor's socket is", "getsockopt:55:209", (OneOf(1, SOL_SOCKET), OneOf(2, OPTIONS))),
    Checked(
        "Read or write; not the flag that tells whether a page is in memory",
        "preadv2:327:286 pwritev2:328:287",
        (OneOf(5, NO_FLAGS, errno.EOPNOTSUPP),),
    ),
    Checked(
        "Advice about reading; not to throw out of memory what others read too",
        "fadvise64:221:223",
        (OneOf(3, {"NORMAL": 0, "RANDOM": 1, "SEQUENTIAL": 2}),),
    ),
    Checked(
        "Registers that libc points to a thread's own memory; use of matrix registers",
        "arch_prctl:158:",
        (OneOf(0, X86_THREADS, errno.EINVAL),),
    ),
)

SIGNALLING = (
    ("kill:62:129 pidfd_send_signal:424:424 rt_sigqueueinfo:129:138 tkill:200:130", 1),
    ("rt_tgsigqueueinfo:297:240 tgkill:234:131", 2),
)
"""Calls that send a signal, and which argument names it: any but SIGCONT, by which a stopped session would go on."""
SIGNALLING_REASON = (
    "Signals to the call's own processes. Not SIGCONT, by which a session that is stopped between two cells would go on"
)
ENTERING = Checked(
    "The forker enters the namespaces of a slot; children can't",
    "setns:308:268",
    (AtLeast(0, FIRST_SLOT_FD),),
)
"""At level strong only."""

NOT_THERE = "clone3:435:435 openat2:437:437"
"""Flags of these lie in memory, where a filter can't look: they do not exist (ENOSYS), and libraries then use clone and
openat."""

LEADING = SyscallGroup("The child leads a group of its own; its code can't (see below)", "setsid:112:157")
SEALED = {
    "setsid": "each session has a processor share of its own, so that a call with 32 of them had 32 shares",
    "setns": "only the forker enters namespaces",
    "prctl": "PR_SET_SECCOMP and PR_SET_PDEATHSIG are the child's own",
}
"""What a child's second, short filter refuses, which it installs as the last step of sealing itself off; and why."""
SEALED_PRCTLS = {name: PRCTLS[name] for name in ("PR_SET_PDEATHSIG", "PR_SET_SECCOMP")}

REFUSED = """
accept:43:202 accept4:288:242 acct:163:89 add_key:248:217 adjtimex:159:171 bind:49:200 bpf:321:280 cachestat:451:451
chroot:161:51 clock_adjtime:305:266 clock_settime:227:112 connect:42:203 delete_module:176:106 execveat:322:281
fanotify_init:300:262 fanotify_mark:301:263 finit_module:313:273 flock:73:32 fremovexattr:199:16 fsconfig:431:431
fsetxattr:190:7 fsmount:432:432 fsopen:430:430 fspick:433:433 init_module:175:105 inotify_add_watch:254:27
inotify_init:253: inotify_init1:294:26 inotify_rm_watch:255:28 io_cancel:210:3 io_destroy:207:1
io_getevents:208:4 io_pgetevents:333:292 io_setup:206:0 io_submit:209:2 io_uring_enter:426:426
io_uring_register:427:427 io_uring_setup:425:425 ioperm:173: iopl:172: ioprio_get:252:31 ioprio_set:251:30
kcmp:312:272 kexec_file_load:320:294 kexec_load:246:104 keyctl:250:219 listen:50:201 lremovexattr:198:15
lsetxattr:189:6 mbind:237:235 membarrier:324:283 memfd_create:319:279 memfd_secret:447:447 migrate_pages:256:238
mincore:27:232 mlock:149:228 mlock2:325:284 mlockall:151:230 modify_ldt:154: mount:165:40 mount_setattr:442:442
move_mount:429:429 move_pages:279:239 mq_getsetattr:245:185 mq_notify:244:184 mq_open:240:180 mq_timedreceive:243:183
mq_timedsend:242:182 mq_unlink:241:181 msgctl:71:187 msgget:68:186 msgrcv:70:188 msgsnd:69:189 munlock:150:229
munlockall:152:231 name_to_handle_at:303:264 open_by_handle_at:304:265 open_tree:428:428 perf_event_open:298:241
personality:135:92 pidfd_getfd:438:438 pivot_root:155:41 pkey_alloc:330:289 pkey_free:331:290 pkey_mprotect:329:288
process_madvise:440:440 process_mrelease:448:448 process_vm_readv:310:270 process_vm_writev:311:271 ptrace:101:117
quotactl:179:60 quotactl_fd:443:443 readahead:187:213 reboot:169:142 remap_file_pages:216:234 removexattr:197:14
request_key:249:218 sched_setaffinity:203:122 sched_setattr:314:274 sched_setparam:142:118 sched_setscheduler:144:119
seccomp:317:277 semctl:66:191 semget:64:190 semop:65:193 semtimedop:220:192 set_mempolicy:238:237
set_mempolicy_home_node:450:450 setdomainname:171:162 setgroups:116:159 sethostname:170:161 setpriority:141:140
settimeofday:164:170 setxattr:188:5 shmat:30:196 shmctl:31:195 shmdt:67:197 shmget:29:194 socket:41:198
splice:275:76 swapoff:168:225 swapon:167:224 sync:162:81 syncfs:306:267 syslog:103:116 tee:276:77 umount2:166:39
unshare:272:97 userfaultfd:323:282 vhangup:153:58 vmsplice:278:75
"""
"""Refused with EPERM; what stands in no list does not exist (ENOSYS). Timers that send any signal are missing: see
``SIGNALLING``."""
