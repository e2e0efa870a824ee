-- What the server says of its engine: for the statusline, and once for people when it is lost and when it is back.
local M = {}

---@class draftline.Status
---@field state 'loading'|'ready'|'unavailable'
---@field message string
---@field model string?
---@field last table?
M.status = nil ---@type draftline.Status?

local was_ready, was_lost = false, false

local function announce()
  vim.cmd.redrawstatus({ bang = true })
  vim.api.nvim_exec_autocmds('User', { pattern = 'DraftlineStatus', modeline = false })
end

function M.tell(text, level)
  vim.notify('Draftline: ' .. text, level or vim.log.levels.INFO)
end

---Handler of `draftline/status`.
function M.changed(_, status)
  if type(status) ~= 'table' then
    return
  end
  M.status = status
  if status.state == 'ready' then
    if was_lost then
      M.tell(('the engine is back (%s)'):format(status.message))
    end
    was_ready, was_lost = true, false
  elseif was_ready and not was_lost then
    was_lost = true
    -- The server itself shows why an engine can't be started.
    if status.state == 'loading' then
      M.tell(status.message, vim.log.levels.WARN)
    end
  end
  announce()
end

---The server is gone: its engine may well be there.
function M.reset()
  M.status = nil
  was_ready, was_lost = false, false
  announce()
end

---Handler of `window/logMessage`: a setting that can't be used is for people, everything else for the log.
function M.logged(err, message, context, config)
  if type(message) == 'table' and message.type == vim.lsp.protocol.MessageType.Warning then
    M.tell(message.message, vim.log.levels.WARN)
  end
  local log = vim.lsp.handlers['window/logMessage']
  return log and log(err, message, context, config)
end

return M
