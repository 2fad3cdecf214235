{{/* Folders and not single files: the kubelet replaces what is in a folder when a Secret or ConfigMap changes. */}}
{{- define "warmroute.mounts" -}}
- {name: state, mountPath: /var/lib/warmroute}
- {name: config, mountPath: /etc/warmroute, readOnly: true}
{{ include "warmroute.givenMounts" . }}
{{- end }}

{{/* What the migration has as well: its DSN may name any of these files. */}}
{{- define "warmroute.givenMounts" -}}
- {name: temporary, mountPath: /tmp}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- range $folder, $secret := fromYaml (include "warmroute.secrets" .) }}
- {name: secret-{{ $folder }}, mountPath: /etc/warmroute-secrets/{{ $folder }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "warmroute.volumes" -}}
{{- if not .Values.persistence.enabled }}
- {name: state, emptyDir: {}}
{{- end }}
- name: config
  configMap: {name: {{ include "warmroute.name" . }}{{ if .Picker }}-picker{{ end }}}
{{ include "warmroute.givenVolumes" . }}
{{- end }}

{{- define "warmroute.givenVolumes" -}}
- {name: temporary, emptyDir: {}}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- range $folder, $secret := fromYaml (include "warmroute.secrets" .) }}
- name: secret-{{ $folder }}
  secret:
    secretName: {{ $secret.name | quote }}
    defaultMode: 0440
    {{- with $secret.items }}
    items: {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}
{{- end }}

{{/* Folder of /etc/warmroute-secrets: the Secret, and which of its keys is which file. */}}
{{- define "warmroute.secrets" -}}
{{- with .Values.secrets }}
fleet: {name: {{ .fleet.name | quote }}, items: [{key: {{ .fleet.key | quote }}, path: secret}]}
{{- if .ledgerDsn.name }}
ledger: {name: {{ .ledgerDsn.name | quote }}, items: [{key: {{ .ledgerDsn.key | quote }}, path: dsn}]}
{{- end }}
{{- if .redisUrl.name }}
redis: {name: {{ .redisUrl.name | quote }}, items: [{key: {{ .redisUrl.key | quote }}, path: url}]}
{{- end }}
{{- if .tls.name }}
tls: {name: {{ .tls.name | quote }}}
{{- end }}
{{- if .ca.name }}
ca: {name: {{ .ca.name | quote }}, items: [{key: {{ .ca.key | quote }}, path: ca.crt}]}
{{- end }}
{{- if .engineKeys.name }}
engine-keys: {name: {{ .engineKeys.name | quote }}}
{{- end }}
{{- end }}
{{- end }}
