//! The C interface of libibverbs and librdmacm: structures, numbers and functions of `infiniband/verbs.h` and
//! `rdma/rdma_cma.h` of rdma-core. Its binary interface has been stable since version 1.1 of libibverbs. Names are
//! those of the headers. Of structures that the libraries allocate, only the first members are here, up to the last one
//! that is used. [`assertions`] is C code that compares all of it with the headers; the lab compiles it.

#[macro_use]
mod load;
mod layout;

use std::ffi::{c_char, c_int, c_uint, c_void};

pub use layout::assertions;

/// Declares numbers, in a module of the same name as the table that the assertions check them by.
macro_rules! numbers {
    ($($name:ident = $value:expr),* $(,)?) => {
        $(pub const $name: u32 = $value;)*
        pub(super) const NUMBERS: &[(&str, u32)] = &[$((stringify!($name), $name)),*];
    };
}

numbers! {
    IBV_GID_TYPE_ROCE_V1 = 1, IBV_GID_TYPE_ROCE_V2 = 2,
    IBV_MTU_256 = 1, IBV_MTU_4096 = 5,
    IBV_PORT_DOWN = 1, IBV_PORT_INIT = 2, IBV_PORT_ARMED = 3, IBV_PORT_ACTIVE = 4,
    IBV_LINK_LAYER_INFINIBAND = 1,
    IBV_EVENT_CQ_ERR = 0, IBV_EVENT_QP_FATAL = 1, IBV_EVENT_QP_REQ_ERR = 2, IBV_EVENT_QP_ACCESS_ERR = 3,
    IBV_EVENT_COMM_EST = 4, IBV_EVENT_SQ_DRAINED = 5, IBV_EVENT_PATH_MIG = 6, IBV_EVENT_PATH_MIG_ERR = 7,
    IBV_EVENT_DEVICE_FATAL = 8, IBV_EVENT_PORT_ACTIVE = 9, IBV_EVENT_PORT_ERR = 10, IBV_EVENT_LID_CHANGE = 11,
    IBV_EVENT_PKEY_CHANGE = 12, IBV_EVENT_SM_CHANGE = 13, IBV_EVENT_SRQ_ERR = 14, IBV_EVENT_CLIENT_REREGISTER = 17,
    IBV_EVENT_QP_LAST_WQE_REACHED = 16, IBV_EVENT_GID_CHANGE = 18,
    IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 2, IBV_ACCESS_REMOTE_READ = 4, IBV_ACCESS_REMOTE_ATOMIC = 8,
    IBV_QPT_RC = 2, IBV_QPT_UD = 4,
    IBV_QP_STATE = 1, IBV_QP_ACCESS_FLAGS = 1 << 3, IBV_QP_PKEY_INDEX = 1 << 4, IBV_QP_PORT = 1 << 5,
    IBV_QP_QKEY = 1 << 6, IBV_QP_AV = 1 << 7, IBV_QP_PATH_MTU = 1 << 8, IBV_QP_TIMEOUT = 1 << 9,
    IBV_QP_RETRY_CNT = 1 << 10, IBV_QP_RNR_RETRY = 1 << 11, IBV_QP_RQ_PSN = 1 << 12,
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13, IBV_QP_MIN_RNR_TIMER = 1 << 15, IBV_QP_SQ_PSN = 1 << 16,
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17, IBV_QP_DEST_QPN = 1 << 20,
    IBV_QPS_RESET = 0, IBV_QPS_INIT = 1, IBV_QPS_RTR = 2, IBV_QPS_RTS = 3, IBV_QPS_SQD = 4, IBV_QPS_SQE = 5,
    IBV_QPS_ERR = 6,
    IBV_WR_RDMA_WRITE = 0, IBV_WR_RDMA_WRITE_WITH_IMM = 1, IBV_WR_SEND = 2, IBV_WR_SEND_WITH_IMM = 3,
    IBV_WR_RDMA_READ = 4, IBV_WR_ATOMIC_CMP_AND_SWP = 5, IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
    IBV_SEND_FENCE = 1, IBV_SEND_SIGNALED = 2, IBV_SEND_SOLICITED = 4, IBV_SEND_INLINE = 8,
    IBV_WC_SUCCESS = 0, IBV_WC_LOC_LEN_ERR = 1, IBV_WC_LOC_QP_OP_ERR = 2, IBV_WC_LOC_PROT_ERR = 4,
    IBV_WC_WR_FLUSH_ERR = 5, IBV_WC_REM_INV_REQ_ERR = 9, IBV_WC_REM_ACCESS_ERR = 10, IBV_WC_REM_OP_ERR = 11,
    IBV_WC_RETRY_EXC_ERR = 12, IBV_WC_RNR_RETRY_EXC_ERR = 13,
    IBV_WC_SEND = 0, IBV_WC_RDMA_WRITE = 1, IBV_WC_RDMA_READ = 2, IBV_WC_COMP_SWAP = 3, IBV_WC_FETCH_ADD = 4,
    IBV_WC_RECV = 128, IBV_WC_RECV_RDMA_WITH_IMM = 129,
    IBV_WC_GRH = 1, IBV_WC_WITH_IMM = 2,
    RDMA_CM_EVENT_MULTICAST_JOIN = 12, RDMA_CM_EVENT_MULTICAST_ERROR = 13,
    RDMA_PS_UDP = 0x0111,
}

/// Declares structures as C lays them out, and for each the offsets that the assertions check.
macro_rules! structures {
    ($($(#[$attribute:meta])* $kind:ident $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            #[allow(non_camel_case_types)]
            pub struct $name { $(pub $field: $type),* }
        )*
        pub(super) const STRUCTURES: &[layout::Structure] = &[$(layout::Structure {
            name: stringify!($name),
            size: layout::size_if_whole(stringify!($kind), size_of::<$name>()),
            offsets: &[$((stringify!($field), std::mem::offset_of!($name, $field))),*],
        }),*];
    };
}

structures! {
    whole ibv_global_route {
        dgid: ibv_gid, flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8,
    }
    whole ibv_ah_attr {
        grh: ibv_global_route, dlid: u16, sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8,
    }
    whole ibv_gid_entry {
        gid: ibv_gid, gid_index: u32, port_num: u32, gid_type: u32, ndev_ifindex: u32,
    }
    whole ibv_device_attr {
        fw_ver: [c_char; 64], node_guid: u64, sys_image_guid: u64, max_mr_size: u64, page_size_cap: u64,
        vendor_id: u32, vendor_part_id: u32, hw_ver: u32, max_qp: c_int, max_qp_wr: c_int, device_cap_flags: c_uint,
        max_sge: c_int, max_sge_rd: c_int, max_cq: c_int, max_cqe: c_int, max_mr: c_int, max_pd: c_int,
        max_qp_rd_atom: c_int, max_ee_rd_atom: c_int, max_res_rd_atom: c_int, max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int, atomic_cap: c_uint, max_ee: c_int, max_rdd: c_int, max_mw: c_int,
        max_raw_ipv6_qp: c_int, max_raw_ethy_qp: c_int, max_mcast_grp: c_int, max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int, max_ah: c_int, max_fmr: c_int, max_map_per_fmr: c_int, max_srq: c_int,
        max_srq_wr: c_int, max_srq_sge: c_int, max_pkeys: u16, local_ca_ack_delay: u8, phys_port_cnt: u8,
    }
    whole ibv_port_attr {
        state: c_uint, max_mtu: c_uint, active_mtu: c_uint, gid_tbl_len: c_int, port_cap_flags: u32, max_msg_sz: u32,
        bad_pkey_cntr: u32, qkey_viol_cntr: u32, pkey_tbl_len: u16, lid: u16, sm_lid: u16, lmc: u8, max_vl_num: u8,
        sm_sl: u8, subnet_timeout: u8, init_type_reply: u8, active_width: u8, active_speed: u8, phys_state: u8,
        link_layer: u8, flags: u8, port_cap_flags2: u16,
    }
    /// The first member is a union of pointers, and of the number of a port.
    whole ibv_async_event { element: *mut c_void, event_type: c_uint }
    whole ibv_wc {
        wr_id: u64, status: c_uint, opcode: c_uint, vendor_err: u32, byte_len: u32, imm_data: u32, qp_num: u32,
        src_qp: u32, wc_flags: c_uint, pkey_index: u16, slid: u16, sl: u8, dlid_path_bits: u8,
    }
    whole ibv_sge { addr: u64, length: u32, lkey: u32 }
    whole ibv_recv_wr { wr_id: u64, next: *mut ibv_recv_wr, sg_list: *mut ibv_sge, num_sge: c_int }
    /// The fields after `wr` are for kinds of requests that are not used.
    whole ibv_send_wr {
        wr_id: u64, next: *mut ibv_send_wr, sg_list: *mut ibv_sge, num_sge: c_int, opcode: c_uint, send_flags: c_uint,
        imm_data: u32, wr: Target, qp_type: u64, bind_mw: [u64; 6],
    }
    whole ibv_srq_attr { max_wr: u32, max_sge: u32, srq_limit: u32 }
    whole ibv_srq_init_attr { srq_context: *mut c_void, attr: ibv_srq_attr }
    whole ibv_qp_cap {
        max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32,
    }
    whole ibv_qp_init_attr {
        qp_context: *mut c_void, send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq, srq: *mut ibv_srq, cap: ibv_qp_cap,
        qp_type: c_uint, sq_sig_all: c_int,
    }
    whole ibv_qp_attr {
        qp_state: c_uint, cur_qp_state: c_uint, path_mtu: c_uint, path_mig_state: c_uint, qkey: u32, rq_psn: u32,
        sq_psn: u32, dest_qp_num: u32, qp_access_flags: c_uint, cap: ibv_qp_cap, ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr, pkey_index: u16, alt_pkey_index: u16, en_sqd_async_notify: u8, sq_draining: u8,
        max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8,
        rnr_retry: u8, alt_port_num: u8, alt_timeout: u8, rate_limit: u32,
    }
    part ibv_pd { context: *mut ibv_context, handle: u32 }
    part ibv_mr {
        context: *mut ibv_context, pd: *mut ibv_pd, addr: *mut c_void, length: usize, handle: u32, lkey: u32, rkey: u32,
    }
    part ibv_ah { context: *mut ibv_context }
    part ibv_comp_channel { context: *mut ibv_context, fd: c_int }
    part ibv_cq { context: *mut ibv_context }
    part ibv_srq { context: *mut ibv_context }
    part ibv_qp {
        context: *mut ibv_context, qp_context: *mut c_void, pd: *mut ibv_pd, send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq, handle: u32, qp_num: u32,
    }
    whole ibv_context_ops {
        _compat_query_device: *mut c_void, _compat_query_port: *mut c_void, _compat_alloc_pd: *mut c_void,
        _compat_dealloc_pd: *mut c_void, _compat_reg_mr: *mut c_void, _compat_rereg_mr: *mut c_void,
        _compat_dereg_mr: *mut c_void, alloc_mw: *mut c_void, bind_mw: *mut c_void, dealloc_mw: *mut c_void,
        _compat_create_cq: *mut c_void,
        poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
        req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
        _compat_cq_event: *mut c_void, _compat_resize_cq: *mut c_void, _compat_destroy_cq: *mut c_void,
        _compat_create_srq: *mut c_void, _compat_modify_srq: *mut c_void, _compat_query_srq: *mut c_void,
        _compat_destroy_srq: *mut c_void,
        post_srq_recv: unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
        _compat_create_qp: *mut c_void, _compat_query_qp: *mut c_void, _compat_modify_qp: *mut c_void,
        _compat_destroy_qp: *mut c_void,
        post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
        post_recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
        _compat_create_ah: *mut c_void, _compat_destroy_ah: *mut c_void, _compat_attach_mcast: *mut c_void,
        _compat_detach_mcast: *mut c_void, _compat_async_event: *mut c_void,
    }
    part ibv_context { device: *mut c_void, ops: ibv_context_ops, cmd_fd: c_int, async_fd: c_int }
    whole rdma_event_channel { fd: c_int }
    whole rdma_ud_param {
        private_data: *const c_void, private_data_len: u8, ah_attr: ibv_ah_attr, qp_num: u32, qkey: u32,
    }
    /// The last member is a union; this arm is the longest one.
    whole rdma_cm_event {
        id: *mut c_void, listen_id: *mut c_void, event: c_uint, status: c_int, param: rdma_ud_param,
    }
}

/// A union in C, which determines the alignment.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types)]
pub struct ibv_gid {
    pub raw: [u8; 16],
}

/// The union `wr` of a request to send.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Target {
    pub rdma: Rdma,
    pub atomic: Atomic,
    pub ud: Datagram,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Datagram {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

functions! {
    /// The functions of libibverbs that are called.
    Verbs, "libibverbs.so.1", "libibverbs1 ibverbs-providers" {
        ibv_get_device_list(*mut c_int) -> *mut *mut c_void;
        ibv_free_device_list(*mut *mut c_void);
        ibv_get_device_name(*mut c_void) -> *const c_char;
        ibv_open_device(*mut c_void) -> *mut ibv_context;
        ibv_close_device(*mut ibv_context) -> c_int;
        ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        _ibv_query_gid_table(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
        ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event(*mut ibv_async_event);
        ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq(*mut ibv_cq) -> c_int;
        ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut ibv_cq, c_uint);
        ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        ibv_destroy_srq(*mut ibv_srq) -> c_int;
        ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        ibv_destroy_qp(*mut ibv_qp) -> c_int;
        ibv_create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
        ibv_destroy_ah(*mut ibv_ah) -> c_int;
        ibv_attach_mcast(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
        ibv_detach_mcast(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
    }
}

functions! {
    /// The functions of librdmacm that are called.
    ConnectionManager, "librdmacm.so.1", "librdmacm1" {
        rdma_create_event_channel() -> *mut rdma_event_channel;
        rdma_destroy_event_channel(*mut rdma_event_channel);
        rdma_create_id(*mut rdma_event_channel, *mut *mut c_void, *mut c_void, c_uint) -> c_int;
        rdma_destroy_id(*mut c_void) -> c_int;
        rdma_bind_addr(*mut c_void, *mut libc::sockaddr) -> c_int;
        rdma_join_multicast(*mut c_void, *mut libc::sockaddr, *mut c_void) -> c_int;
        rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
    }
}
